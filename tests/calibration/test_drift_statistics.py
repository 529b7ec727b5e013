"""What the drift detector sees: traces as the active policy leaves them."""

from __future__ import annotations

import pytest

from desist.calibration.drift_statistics import NO_SCORE, STATISTICS, replayed_statistics, trace_statistics
from desist.controller.core import Policy
from tests.fakes.traces import make_trace


def test_a_stop_hides_what_comes_after_it() -> None:
    trace = make_trace([0.2, 0.9, 0.1, 0.95], [True, False, False, False], gap=50)
    (stopped,) = replayed_statistics([trace], Policy("probe", lam=0.8))
    assert dict(zip(STATISTICS, stopped, strict=True)) == {
        "reasoning_tokens": 100.0,
        "first_score": 0.2,
        "mean_score": pytest.approx(0.55),
        "top_score": 0.9,
    }
    (whole,) = replayed_statistics([trace], Policy("probe", lam=None))
    assert whole[0] == trace.n_reasoning_tokens
    assert whole[3] == 0.95


def test_patience_and_kinds_are_those_of_the_policy() -> None:
    trace = make_trace([0.9, 0.9, 0.9, 0.9], [False] * 4, gap=50)
    (patient,) = replayed_statistics([trace], Policy("probe", lam=0.8, patience=3))
    assert patient[0] == 150
    (cues,) = replayed_statistics([trace], Policy("probe", lam=0.8, patience=2), kinds=("cue",))
    assert cues[0] == 150  # boundaries 0 and 2 are cues


def test_traces_without_scores_have_a_place_of_their_own() -> None:
    assert trace_statistics([], None, 77) == (77.0, NO_SCORE, NO_SCORE, NO_SCORE)
    assert trace_statistics([(10, None), (20, float("nan"))], None, 77)[1:] == (NO_SCORE,) * 3
    assert trace_statistics([(10, 0.5), (20, 0.9)], 10, 77) == (10.0, 0.5, 0.5, 0.5)
