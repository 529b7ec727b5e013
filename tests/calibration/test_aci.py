"""Adaptive thresholds: the bound holds on any sequence, and it is not the certificate's claim."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.calibration.aci import AdaptiveThreshold
from desist.data.errors import CalibrationError

ALPHA = Fraction(1, 10)
CRITICAL = np.linspace(0, 1, 101)[:-1]


@given(st.lists(st.booleans(), min_size=1, max_size=400), st.sampled_from([0.005, 0.05, 0.5]))
def test_the_bound_holds_on_adversarial_sequences(losses: list[bool], gamma: float) -> None:
    """The adversary may make every stop a loss; where nothing is stopped nothing can be lost."""
    adaptive = AdaptiveThreshold(CRITICAL, ALPHA, gamma=gamma)
    for loss in losses:
        adaptive.observe(float(loss and adaptive.threshold is not None))
        assert adaptive.losses / adaptive.n <= adaptive.bound + 1e-12
        assert -gamma <= adaptive.level <= 1


def test_it_follows_a_shift_that_a_fixed_threshold_does_not() -> None:
    rng = np.random.default_rng(2)
    adaptive = AdaptiveThreshold(rng.random(500) * 0.6, ALPHA)
    fixed = adaptive.threshold
    assert fixed is not None
    lost = {"adaptive": 0, "fixed": 0}
    n = 6000
    for _ in range(n):
        score = 0.3 + 0.6 * rng.random()  # critical scores have risen
        now = adaptive.threshold
        loss = now is not None and score > now
        adaptive.observe(float(loss))
        lost["adaptive"] += loss
        lost["fixed"] += score > fixed
    assert lost["adaptive"] / n <= adaptive.bound
    assert lost["fixed"] / n > 0.3


def test_thresholds_are_exact_ranks_and_never_below_the_lowest() -> None:
    adaptive = AdaptiveThreshold([0.1, 0.2, 0.3, 0.4, -math.inf, 0.6, 0.7, 0.8, 0.9], ALPHA, lowest=0.5)
    assert adaptive.threshold == 0.9  # ceil(10 * 0.9) = 9
    adaptive.level = 0.05
    assert adaptive.threshold is None
    adaptive.level = 0.95
    assert adaptive.threshold == 0.5
    adaptive.level = 1.0
    assert adaptive.threshold == 0.5
    adaptive.level = 0.0
    assert adaptive.threshold is None
    assert "no certificate" in adaptive.claim


def test_bad_input_and_restart() -> None:
    with pytest.raises(CalibrationError, match="critical scores"):
        AdaptiveThreshold([], ALPHA)
    with pytest.raises(CalibrationError, match="gamma 0"):
        AdaptiveThreshold(CRITICAL, ALPHA, gamma=0)
    adaptive = AdaptiveThreshold(CRITICAL, ALPHA)
    with pytest.raises(CalibrationError, match="loss is 2"):
        adaptive.observe(2)
    adaptive.observe(1)
    again = AdaptiveThreshold(CRITICAL, ALPHA)
    again.restore(adaptive.state())
    assert again.threshold == adaptive.threshold
