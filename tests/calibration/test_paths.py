"""The calibration arrays and the controller's replay are one policy: same stops, same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.calibration.critical import critical_scores, maximum_scores
from desist.calibration.ltt import default_grid
from desist.calibration.outcomes import path_outcomes, policy_outcomes
from desist.calibration.paths import Paths, build_paths, restrict, sweep
from desist.calibration.scorers import agreement, stored
from desist.controller.core import Control, Policy
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_trace, make_traces, random_paths

SCORES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 0.75, 0.9, 1.0])
TEXTS = ["so ", "then $$ x = 1 ", "\n\n", "``` \ncode ", "\n```\n", '{"a": 1 ']


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    length = draw(st.integers(0, 9))
    scores = draw(st.lists(SCORES, min_size=length, max_size=length))
    bad = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    trace = make_trace(scores, bad, gap=draw(st.integers(1, 60)))
    reasoning = "".join(draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=40)))
    chars = sorted(draw(st.lists(st.integers(0, len(reasoning)), min_size=length, max_size=length)))
    places = tuple(replace(b, char=c) for b, c in zip(trace.boundaries, chars, strict=True))
    return replace(trace, reasoning=reasoning, boundaries=places)


SHAPES = st.builds(
    Policy,
    lam=st.one_of(st.none(), SCORES, st.floats(0, 1)),
    patience=st.integers(1, 4),
    warmup_tokens=st.sampled_from([0, 1, 60, 200]),
    ema=st.sampled_from([1.0, 0.5, 0.3]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(traces(), min_size=1, max_size=4), SHAPES)
def test_paths_equal_the_controllers_replay(several: list[Trace], policy: Policy) -> None:
    paths = build_paths(several, policy, stored("probe"), "consistency")
    ours = path_outcomes(several, paths, policy.lam)
    theirs = policy_outcomes(several, Control(policy=policy))
    for name in ("stop", "stopped", "tokens", "run_tokens", "consistent", "stopped_correct"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def brute_loss(paths: Paths, row: int, lam: float) -> bool:
    for place in range(paths.statistic.shape[1]):
        if paths.statistic[row, place] > lam:
            return bool(paths.bad[row, place])
    return False


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_critical_score_is_the_smallest_falling_envelope(seed: int) -> None:
    paths = random_paths(np.random.default_rng(seed), 30, t=6)
    paths.statistic[:] = np.where(np.isfinite(paths.statistic), np.round(paths.statistic, 1), -np.inf)
    grid = np.arange(-1, 105) / 100
    critical = critical_scores(paths)
    loss = np.asarray([[brute_loss(paths, row, lam) for lam in grid] for row in range(30)])
    bound = critical[:, None] > grid[None, :]
    assert (loss <= bound).all()
    smallest = np.maximum.accumulate(loss[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_array_equal(bound, smallest)
    assert (maximum_scores(paths) >= critical).all()


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_sweep_equals_brute_force(seed: int) -> None:
    paths = random_paths(np.random.default_rng(seed), 25, t=5)
    grid = np.asarray([1.0, 0.9, 0.5, 0.3, 0.0])
    table = sweep(paths, grid)
    for place, lam in enumerate(grid):
        stops = paths.stops(float(lam))
        assert table.losses[place] == sum(brute_loss(paths, row, float(lam)) for row in range(25))
        assert table.stopped[place] == (stops >= 0).sum()
        costs = [paths.tokens[r, s] if s >= 0 else paths.full_tokens[r] for r, s in enumerate(stops)]
        assert table.tokens[place] == sum(costs)


def test_strict_threshold_a_tie_does_not_stop() -> None:
    paths = build_paths([make_trace([0.5, 0.7], [True, False])], Policy(), stored("probe"), "consistency")
    assert paths.stops(0.5).tolist() == [1]
    assert paths.stops(0.7).tolist() == [-1]
    assert critical_scores(paths).tolist() == [0.5]


def test_probe_tokens_are_charged_at_every_boundary_up_to_the_stop() -> None:
    trace = make_trace([0.1, 0.2, 0.3], [False] * 3, gap=50, answer_tokens=10)
    paths = build_paths([trace], Policy(), agreement(), "consistency")
    assert paths.tokens[0].tolist() == [60, 120, 180]
    assert paths.full_tokens.tolist() == [200 + 10 + 30]
    assert paths.run_tokens.tolist() == [210]
    free = build_paths([trace], Policy(), agreement(free=True), "consistency")
    assert free.tokens[0].tolist() == [60, 110, 160]
    assert free.full_tokens.tolist() == [210]


def test_missing_and_impossible_scores_are_counted_and_named() -> None:
    good = make_traces(3, 1)
    broken = replace(good[1], boundaries=tuple(replace(b, scores={}) for b in good[1].boundaries))
    odd = make_trace([0.5, 1.5, float("nan")], [False] * 3, name="odd")
    with pytest.raises(CalibrationError) as failure:
        build_paths([good[0], broken, odd], Policy(), stored("probe"), "consistency")
    assert f"{len(broken.boundaries)} of " in str(failure.value)
    assert "2 of" in str(failure.value)
    assert "trace-odd, boundary 1" in str(failure.value)


def test_missing_labels_are_refused_for_the_loss_that_needs_them() -> None:
    trace = make_trace([0.5, 0.6], [False, True], full_correct=None)
    with pytest.raises(CalibrationError, match="2 of 2 boundaries have no label"):
        build_paths([trace], Policy(), stored("probe"), "harm")
    assert build_paths([trace], Policy(), stored("probe"), "consistency").bad.tolist() == [[False, True]]


def test_harm_needs_a_right_full_run_and_truncation_follows_its_convention() -> None:
    wrong = make_trace([0.5, 0.6], [True, False], full_correct=False)
    assert not build_paths([wrong], Policy(), stored("probe"), "harm").bad.any()
    cut = replace(wrong, truncated=True)
    assert build_paths([cut], Policy(), stored("probe"), "harm", "loss").bad.all()
    labels = build_paths([cut], Policy(), stored("probe"), "consistency", "no_answer")
    assert labels.bad.tolist() == [[True, False]]
    silent = replace(cut, boundaries=(cut.boundaries[0], replace(cut.boundaries[1], forced_answer="")))
    # By default a stop with an answer is a loss there, one without is none.
    for loss in ("consistency", "harm"):
        assert build_paths([silent], Policy(), stored("probe"), loss).bad.tolist() == [[True, False]]


def test_traces_without_boundaries_never_stop() -> None:
    empty = make_trace([], [])
    paths = build_paths([empty, empty], Policy(), stored("probe"), "consistency")
    assert paths.stops(0.0).tolist() == [-1, -1]
    assert critical_scores(paths).tolist() == [-np.inf, -np.inf]
    assert sweep(paths, default_grid()).losses.sum() == 0


def test_a_policy_sees_only_its_kinds() -> None:
    trace = make_trace([0.1, 0.9, 0.2, 0.8], [False] * 4)
    assert [b.index for b in restrict(trace, ("paragraph",)).boundaries] == [1, 3]
    assert restrict(trace, None) is trace
