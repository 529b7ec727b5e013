"""Bounds on audited loss: they hold at all times, and the ones that do not are shown not to."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, poisson

from desist.calibration.audits_bound import LossAlarm, RiskBounds, needed_audits
from desist.calibration.intervals import clopper_pearson
from desist.data.errors import CalibrationError

DELTA = Fraction(1, 20)


def test_the_confidence_sequence_covers_at_every_time_and_a_fixed_interval_does_not() -> None:
    """1,000 streams of 2,000 audits, looked at after each of the first 2,000."""
    rng = np.random.default_rng(3)
    risk, runs, steps = 0.04, 1000, 2000
    counts = np.cumsum(rng.random((runs, steps)) < risk, axis=1)
    sequence = _limits(steps, lambda n, k: RiskBounds(DELTA, n, k).log_wealth(risk) < -math.log(DELTA))
    missed = _ever_outside(counts, sequence)
    assert missed <= binom.ppf(0.999, runs, float(DELTA))
    # An exact interval for one n, looked at after each audit.
    ends = [(binom.ppf(0.025, n, risk), binom.ppf(0.975, n, risk)) for n in range(1, steps + 1)]
    assert _ever_outside(counts, ends) > 2 * binom.ppf(0.999, runs, float(DELTA))


def _ever_outside(counts: np.ndarray, limits: list[tuple[float, float]]) -> int:
    low, high = np.asarray(limits).T
    return int(((counts < low) | (counts > high)).any(axis=1).sum())


def _limits(steps: int, holds: Callable[[int, int], bool]) -> list[tuple[float, float]]:
    """For each n the least and the largest count with which the interval holds the true risk."""
    found, low, high = [], 0, 0
    for n in range(1, steps + 1):
        while not holds(n, low):
            low += 1
        high = max(low, high)
        while high < n and holds(n, high + 1):
            high += 1
        found.append((low, high))
    return found


@given(st.integers(0, 500), st.integers(0, 500))
def test_ends_of_the_interval_are_where_the_wealth_says(losses: int, kept: int) -> None:
    n = losses + kept
    bounds = RiskBounds(DELTA, n, losses)
    low, high = bounds.interval
    assert 0 <= low <= high <= 1
    if n == 0:
        return
    assert low <= losses / n <= high
    for end in (low, high):
        if 0 < end < 1:
            assert bounds.log_wealth(end) == pytest.approx(math.log(20), abs=1e-4)
    exact = clopper_pearson(losses, n)
    assert low <= exact.low + 1e-9  # to hold at all times costs width
    assert high >= exact.high - 1e-9


@given(st.floats(0.01, 0.99), st.lists(st.floats(0, 1), max_size=6))
def test_wealth_is_a_supermartingale_for_losses_between_0_and_1(risk: float, losses: list[float]) -> None:
    bounds = RiskBounds(DELTA)
    for loss in losses:
        bounds.observe(loss)
    before, mean = math.exp(bounds.log_wealth(risk)), 0.0
    # A loss with mean `risk` that is not 0/1: risk +- spread.
    spread = min(risk, 1 - risk)
    for loss in (risk - spread, risk + spread):
        after = RiskBounds(DELTA, bounds.n, bounds.losses)
        after.observe(loss)
        mean += math.exp(after.log_wealth(risk)) / 2
    assert mean <= before * (1 + 1e-9)


def test_the_alarm_keeps_its_rate_and_finds_late_changes() -> None:
    rng = np.random.default_rng(8)
    alarm = LossAlarm(Fraction(1, 20), alarm_every=500)
    alarms = 0
    for loss in (rng.random(50_000) < 0.05).tolist():
        if alarm.observe(loss):
            alarms += 1
            alarm.reset()
    assert 0 < alarms <= poisson.ppf(0.99, 50_000 / 500)
    late = LossAlarm(Fraction(1, 20), alarm_every=1000)
    for loss in (rng.random(5000) < 0.03).tolist():
        late.observe(loss)
    assert late.alarm_at is None
    for loss in (rng.random(200) < 0.2).tolist():
        late.observe(loss)
    assert late.alarm_at is not None
    assert 5000 < late.alarm_at < 5200
    again = LossAlarm(Fraction(1, 20), alarm_every=1000)
    again.restore(late.state())
    assert again.state() == late.state()


def test_a_bet_is_fair_at_alpha_and_unfavourable_below() -> None:
    for alpha in (Fraction(1, 100), Fraction(1, 20), Fraction(9, 10)):
        for risk, most in ((float(alpha), 1.0 + 1e-12), (float(alpha) / 2, 1.0)):
            hit, miss = LossAlarm(alpha), LossAlarm(alpha)
            hit.observe(1)
            miss.observe(0)
            assert risk * hit.evidence + (1 - risk) * miss.evidence <= most


def test_needed_numbers_are_printed() -> None:
    words = needed_audits(DELTA)
    assert words == "0 losses in 59 certify 5 %, in 299 certify 1 % (delta 0.05)"


def test_impossible_input() -> None:
    with pytest.raises(CalibrationError, match=r"loss is 1\.5"):
        RiskBounds(DELTA).observe(1.5)
    with pytest.raises(CalibrationError, match="delta"):
        RiskBounds(Fraction(0))
    with pytest.raises(CalibrationError, match="alpha"):
        LossAlarm(Fraction(0))
    with pytest.raises(CalibrationError, match="another shape"):
        LossAlarm(Fraction(1, 20)).restore({"n": 1, "alarm_at": None, "sums": [1.0]})
