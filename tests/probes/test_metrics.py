"""Figures: ties, one class, bins, and the yardstick of saved tokens, each against a plain definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.probes import metrics

pairs = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=40)


@given(pairs)
def test_auroc_counts_pairs_and_half_of_ties(data: list[tuple[bool, int]]) -> None:
    label, score = (np.array(column) for column in zip(*data, strict=True))
    good, bad = score[label], score[~label]
    area = metrics.auroc(label, score)
    if not len(good) or not len(bad):
        assert area is None
        return
    won = (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
    assert area == pytest.approx(won / (len(good) * len(bad)))
    assert metrics.auroc(label, -score) == pytest.approx(1 - area)


def test_position_alone_is_worth_nothing_in_matched_bins() -> None:
    rng = np.random.default_rng(0)
    position = rng.integers(0, 10, 20_000) * 100
    label = rng.random(20_000) < position / 1000
    score = position + 0.0
    assert (metrics.auroc(label, score) or 0) > 0.75
    matched, bins = metrics.position_matched_auroc(label, score, position)
    assert matched is not None
    assert matched < 0.56  # two positions may share a bin
    assert bins >= 5
    assert metrics.position_matched_auroc(np.ones(3, bool), np.arange(3.0), np.arange(3)) == (None, 0)


def test_within_trace_auroc_sees_only_mixed_traces() -> None:
    label = np.array([False, True, True, True, False, True])
    score = np.array([0.1, 0.2, 0.0, 0.0, 0.9, 0.8])
    trace = np.array([0, 0, 1, 1, 2, 2])
    assert metrics.within_trace_auroc(label, score, trace) == (0.5, 2)


def test_ece_of_a_calibrated_and_of_an_overconfident_score() -> None:
    rng = np.random.default_rng(0)
    score = rng.random(50_000)
    label = rng.random(50_000) < score
    assert metrics.expected_calibration_error(label, score) < 0.01
    assert metrics.expected_calibration_error(label, np.ones(50_000)) == pytest.approx(1 - label.mean())


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=5), min_size=1, max_size=12
    )
)
def test_saved_at_risk_keeps_the_risk_and_counts_first_crossings(
    traces: list[list[tuple[bool, int]]],
) -> None:
    trace = np.concatenate([[n] * len(t) for n, t in enumerate(traces)]).astype(np.int64)
    label = np.array([lab for t in traces for lab, _ in t])
    score = np.array([float(s) for t in traces for _, s in t])
    position = np.concatenate([np.arange(1, len(t) + 1) for t in traces]).astype(np.int64)
    lengths = np.array([len(t) + 1 for t in traces], dtype=np.int64)
    saved = metrics.saved_at_risk(label, score, position, trace, lengths, risk=0.2)

    def run(lam: float) -> tuple[float, float]:
        bad, tokens = 0, 0
        for t in traces:
            stop = next((i for i, (_, s) in enumerate(t) if s > lam), None)
            bad += stop is not None and not t[stop][0]
            tokens += len(t) + 1 if stop is None else stop + 1
        return bad / len(traces), 1 - tokens / lengths.sum()

    outcomes = [run(lam) for lam in [-1.0, *range(6)]]
    assert any(risk <= 0.2 and kept == pytest.approx(saved) for risk, kept in outcomes)
