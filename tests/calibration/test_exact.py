from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from desist.calibration.exact import at_most, exact, exact_text, level
from desist.calibration.split import conformal_rank
from desist.data.errors import CalibrationError


@pytest.mark.parametrize("value", [0.05, "0.05", "1/20", Fraction(1, 20), " 0.05 ", "5e-2"])
def test_a_level_means_its_decimal_text(value: object) -> None:
    assert exact(value) == Fraction(1, 20)


@settings(deadline=None)
@given(st.fractions(min_value=0, max_value=1, max_denominator=10**6))
def test_text_is_read_back_without_loss(value: Fraction) -> None:
    assert exact(exact_text(value)) == value


@pytest.mark.parametrize("value", [0, 1, "0", 1.5, -0.1, "nan", "many", None, "1/0"])
def test_levels_outside_the_open_interval_are_refused(value: object) -> None:
    with pytest.raises(CalibrationError, match=r"0\.05"):
        level(value)


@settings(deadline=None)
@given(
    st.integers(1, 60),
    st.integers(-1, 60),
    st.fractions(min_value=Fraction(1, 100), max_value=Fraction(1, 2), max_denominator=100),
    st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(1, 2), max_denominator=1000),
)
def test_tail_comparison_agrees_with_scipy_away_from_ties(n: int, m: int, a: Fraction, d: Fraction) -> None:
    tail = float(binom.cdf(m, n, float(a))) if m >= 0 else 0.0
    if abs(tail - float(d)) > 1e-6:
        assert at_most(m, n, a, d) == (tail <= float(d))


def test_ties_are_decided_in_integers() -> None:
    # P(Bin(3, 1/2) <= 1) is exactly 1/2, P(Bin(1, 1/20) <= 0) exactly 19/20.
    assert at_most(1, 3, Fraction(1, 2), Fraction(1, 2))
    assert not at_most(1, 3, Fraction(1, 2), Fraction(1, 2) - Fraction(1, 10**30))
    assert at_most(0, 1, Fraction(1, 20), Fraction(19, 20))
    assert not at_most(0, 1, Fraction(1, 20), Fraction(19, 20) - Fraction(1, 10**25))


def test_R61_R62_conformal_rank_does_not_slip() -> None:
    # (n + 1)(1 - alpha) is the whole number 19 here; floats make it 19.000000000000004 for some levels.
    assert conformal_rank(19, exact(0.05)) == 19
    assert conformal_rank(18, exact(0.05)) is None
    assert conformal_rank(99, exact("0.01")) == 99
    assert conformal_rank(98, exact("0.01")) is None
    for n in range(1, 400):
        for percent in (1, 2, 5, 7, 10):
            k = conformal_rank(n, Fraction(percent, 100))
            needed = -(-(n + 1) * (100 - percent) // 100)
            assert k == (needed if needed <= n else None)
