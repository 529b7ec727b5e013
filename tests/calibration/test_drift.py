"""Drift: ranks that are exact in bounded memory, evidence that keeps its promise, misuse that breaks it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, poisson

from benchmarks.drift import POLICY, detector, false_alarms
from benchmarks.drift_streams import LAM, MILD, STRONG, Shift, simulate
from desist.calibration.drift import DriftDetector, RankHistory, ShiryaevRoberts
from desist.calibration.drift_reference import DriftReference, build_reference, reference_path
from desist.controller.core import Policy
from desist.data.errors import ArtifactMismatch, CalibrationError

EDGES = (0.2, 0.4, 0.6, 0.8)


@given(st.lists(st.sampled_from(EDGES), max_size=30), st.floats(0, 1, exclude_max=True))
def test_ranks_are_those_of_the_definition(values: list[float], uniform: float) -> None:
    history = RankHistory(EDGES)
    for t, value in enumerate(values, 1):
        past = values[: t - 1]
        above = sum(other > value for other in past)
        equal = sum(other == value for other in past)
        assert history.p_value(value, uniform) == pytest.approx((above + uniform * (equal + 1)) / t)


@pytest.mark.parametrize("heavy_ties", [False, True])
def test_ranks_are_uniform_and_independent_with_few_bins(heavy_ties: bool) -> None:
    """Also for the first trace after the warm-up, and also where nearly everything is tied."""
    rng = np.random.default_rng(5)
    first, pairs = [], []
    for _ in range(3000):
        values = rng.random(140)
        if heavy_ties:
            values = np.where(values < 0.7, 0.0, values)
        reference = build_reference(values[:120, None], POLICY, seed=int(rng.integers(1 << 30)), names=("s",))
        history = RankHistory(reference.edges[0], reference.counts[0])
        ranks = [history.p_value(value, rng.random()) for value in values[120:].tolist()]
        first.append(ranks[0])
        pairs.append(ranks)
    table = np.asarray(pairs)
    assert kstest(first, "uniform").pvalue > 1e-3
    assert kstest(table.ravel(), "uniform").pvalue > 1e-3
    later = np.corrcoef(table.T)[np.triu_indices(table.shape[1], 1)]
    assert np.abs(later).max() < 5 / math.sqrt(len(table))


def test_every_step_adds_exactly_one_on_average() -> None:
    """E[R] grows by 1 for uniform p-values, whatever the evidence stood at: that is the e-detector."""
    grid = (np.arange(2000) + 0.5) / 2000
    start = ShiryaevRoberts(1, 1e9)
    for p in (0.9, 0.7, 0.99, 0.2, 0.6):
        start.step([p])
    before, state = math.exp(start.log_evidence), start.state()
    after = []
    for p in grid:
        one = ShiryaevRoberts(1, 1e9)
        one.restore(state)
        one.step([p])
        after.append(math.exp(one.log_evidence))
    assert np.mean(after) == pytest.approx(before + 1, rel=1e-5)


def test_evidence_neither_overflows_nor_vanishes() -> None:
    evidence = ShiryaevRoberts(2, 1e5)
    for _ in range(20_000):
        evidence.step([0.98, 0.5])
    assert 1000 < evidence.log_evidence < math.inf
    assert evidence.shares[0] > 0.99
    rng = np.random.default_rng(0)
    calm = ShiryaevRoberts(1, 1e9)
    for p in rng.random(20_000).tolist():
        calm.step([p])
    assert calm.log_evidence > -2  # each step starts anew: nothing decays


def test_false_alarms_stay_within_the_bound() -> None:
    """Active stopping, ties, four dependent statistics: at most one alarm in 2,000 traces."""
    found = false_alarms(seed=3, traces=60_000, warm=1000, alarm_every=2000)
    assert found["within"]
    assert found["alarms"] > 0  # the bound is nearly used: a detector that never alarms is no detector


@pytest.mark.extended
def test_false_alarms_on_a_million_traces() -> None:
    found = false_alarms(seed=0, traces=1_000_000, warm=2000, alarm_every=10_000)
    assert found["within"]
    assert found["state_bytes_last"] < found["state_bytes_first"] + 1000


def test_a_frozen_history_breaks_the_promise() -> None:
    """The invalid method: every new trace against the same calibration set, as plain conformal would."""
    rng = np.random.default_rng(11)
    alarms = 0
    n, every = 40_000, 2000
    calibration = np.sort(rng.random(100))
    evidence = ShiryaevRoberts(1, every)
    for value, uniform in rng.random((n, 2)).tolist():
        below = int(np.searchsorted(calibration, value))
        if evidence.step([(100 - below + uniform) / 101]):
            alarms += 1
            evidence.reset()
    assert alarms > 3 * poisson.ppf(0.99, n / every)


def test_unstopped_calibration_traces_are_the_wrong_history() -> None:
    """Stopped traces show fewer and selected scores: that alone looks like a change."""
    rows = simulate(np.random.default_rng(2), 1000).tolist()
    wrong, right = detector(1, 1000, 1e5, lam=None), detector(1, 1000, 1e5)
    assert any(wrong.observe(row) for row in rows)
    assert not any(right.observe(row) for row in rows)


@pytest.mark.parametrize(("shift", "within"), [(STRONG, 150), (MILD, 800), (Shift(longer=2.0), 150)])
def test_changes_are_found(shift: Shift, within: int) -> None:
    rng = np.random.default_rng(4)
    watched = detector(4, 1000, 1e5)
    for row in simulate(rng, 1500).tolist():
        watched.observe(row)
    assert watched.alarm_at is None
    for row in simulate(rng, within, shift=shift).tolist():
        watched.observe(row)
    assert watched.alarm_at is not None
    assert watched.alarm_at > 1500
    watched.reset()
    assert (watched.alarm_at, watched.evidence.log_evidence) == (None, -math.inf)


def test_a_saved_detector_goes_on_as_if_it_had_not_stopped() -> None:
    rows = simulate(np.random.default_rng(6), 3000, shift=Shift(power=1.1)).tolist()
    whole = detector(2, 500, 1e4)
    for row in rows:
        whole.observe(row)
    for cut in (0, 1, 1023, 1024, 2999):
        first = detector(2, 500, 1e4)
        for row in rows[:cut]:
            first.observe(row)
        second = detector(2, 500, 1e4)
        second.restore(json.loads(json.dumps(first.state())))
        for row in rows[cut:]:
            second.observe(row)
        assert second.state() == whole.state()


def test_a_reference_is_a_file_that_knows_what_it_is_for(tmp_path: object) -> None:
    table = simulate(np.random.default_rng(0), 400)
    made = build_reference(table, POLICY, certificate="abc", seed=3)
    assert (made.n, made.n_edges) == (300, 100)
    assert all(sum(counts) == 300 for counts in made.counts)
    path = made.save(reference_path(f"{tmp_path}/consistency-0.05.json"))
    assert path.name == "consistency-0.05.drift"
    again = DriftReference.load(path)
    assert again == made
    assert again.key == made.key
    assert build_reference(table, POLICY, certificate="abd", seed=3).key != made.key
    assert again.require(POLICY, "abc") is again
    with pytest.raises(ArtifactMismatch, match=r"patience differ"):
        again.require(Policy("probe", lam=LAM, patience=2))
    with pytest.raises(ArtifactMismatch, match="certificate"):
        again.require(POLICY, "other")
    path.write_text("{")
    with pytest.raises(CalibrationError, match="no drift reference"):
        DriftReference.load(path)


def test_what_cannot_be_watched_is_told() -> None:
    with pytest.raises(CalibrationError, match="too few"):
        build_reference(np.zeros((20, 4)), POLICY)
    with pytest.raises(CalibrationError, match="shape"):
        build_reference(np.zeros((200, 3)), POLICY)
    with pytest.raises(CalibrationError, match="not a number"):
        build_reference(np.full((200, 4), np.nan), POLICY)
    watched = detector(0, 200, 1e4)
    with pytest.raises(CalibrationError, match="4"):
        watched.observe([1.0])
    with pytest.raises(CalibrationError, match="not a number"):
        watched.observe([math.nan] * 4)
    with pytest.raises(CalibrationError, match="more than one trace"):
        DriftDetector(watched.histories, alarm_every=1)
    with pytest.raises(CalibrationError, match="edges must rise"):
        RankHistory([0.5, 0.2])
