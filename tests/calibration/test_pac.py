from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from desist.calibration.exact import exact
from desist.calibration.pac import needed_n, pac_rank, pac_threshold, smallest_n
from desist.data.errors import CalibrationError

LEVELS = st.sampled_from(
    [Fraction(1, 100), Fraction(1, 50), Fraction(1, 20), Fraction(1, 10), Fraction(1, 5)]
)


@pytest.mark.parametrize(
    ("n", "alpha", "delta", "m"),
    [
        (44, 0.05, 0.1, None),
        (45, 0.05, 0.1, 0),
        (59, 0.05, 0.05, 0),
        (100, 0.05, 0.1, 1),
        (200, 0.05, 0.1, 5),
        (500, 0.05, 0.1, 18),
        (1000, 0.05, 0.1, 40),
        (500, 0.02, 0.1, 5),
        (1000, 0.02, 0.05, 12),
        (300, 0.01, 0.05, 0),
        (1000, 0.01, 0.05, 4),
        (2000, 0.01, 0.05, 12),
    ],
)
def test_ranks_of_the_known_table(n: int, alpha: float, delta: float, m: int | None) -> None:
    assert pac_rank(n, exact(alpha), exact(delta)) == m


@pytest.mark.parametrize(
    ("alpha", "delta", "n"),
    [(0.1, 0.1, 22), (0.1, 0.05, 29), (0.05, 0.1, 45), (0.05, 0.05, 59), (0.02, 0.1, 114), (0.02, 0.05, 149),
     (0.01, 0.1, 230), (0.01, 0.05, 299)],
)  # fmt: skip
def test_smallest_n_of_the_known_table(alpha: float, delta: float, n: int) -> None:
    assert smallest_n(exact(alpha), exact(delta)) == n
    assert pac_rank(n, exact(alpha), exact(delta)) == 0
    assert pac_rank(n - 1, exact(alpha), exact(delta)) is None


@settings(deadline=None)
@given(st.integers(1, 2000), LEVELS, LEVELS)
def test_rank_agrees_with_the_beta_quantile(n: int, alpha: Fraction, delta: Fraction) -> None:
    m = pac_rank(n, alpha, delta)
    # P(Bin(n, a) <= m) = P(Beta(m+1, n-m) > a): the upper confidence bound at m exceedances is <= alpha.
    bounds = beta.ppf(1 - float(delta), np.arange(n) + 1, n - np.arange(n))
    inside = np.flatnonzero(bounds <= float(alpha) + 1e-12)
    assert m == (int(inside[-1]) if len(inside) else None)


@settings(deadline=None)
@given(st.integers(1, 1500), LEVELS, LEVELS)
def test_rank_grows_with_n_alpha_and_delta(n: int, alpha: Fraction, delta: Fraction) -> None:
    def rank(n: int, alpha: Fraction, delta: Fraction) -> int:
        m = pac_rank(n, alpha, delta)
        return -1 if m is None else m

    assert rank(n, alpha, delta) <= rank(n + 1, alpha, delta)
    assert rank(n, alpha, delta) <= rank(n, alpha + Fraction(1, 50), delta)
    assert rank(n, alpha, delta) <= rank(n, alpha, delta + Fraction(1, 50))


def test_threshold_is_the_order_statistic() -> None:
    scores = np.arange(100) / 100
    m = pac_rank(100, exact(0.05), exact(0.1))
    assert m == 1
    lam = pac_threshold(scores, exact(0.05), exact(0.1))
    assert lam == 0.98
    assert int((scores > lam).sum()) == m


def test_threshold_is_never_below_zero_and_none_when_n_is_too_small() -> None:
    assert pac_threshold(np.full(100, -np.inf), exact(0.05), exact(0.05)) == 0.0
    assert pac_threshold(np.full(58, -np.inf), exact(0.05), exact(0.05)) is None
    with pytest.raises(CalibrationError, match="1 critical scores"):
        pac_threshold(np.array([0.1] * 80 + [np.nan]), exact(0.05), exact(0.05))


@settings(deadline=None)
@given(st.lists(st.sampled_from([-np.inf, 0.2, 0.5, 0.5, 0.9]), min_size=60, max_size=120))
def test_ties_at_the_threshold_do_not_stop(values: list[float]) -> None:
    scores = np.asarray(values)
    m = pac_rank(len(scores), exact(0.05), exact(0.05))
    lam = pac_threshold(scores, exact(0.05), exact(0.05))
    assert m is not None
    assert lam is not None
    assert int((scores > lam).sum()) <= m


def test_needed_n_is_enough_and_not_more_than_needed() -> None:
    n = needed_n(0.03, exact(0.05), exact(0.05))
    assert n is not None
    assert binom.cdf(np.ceil(0.03 * n - 1e-9), n, 0.05) <= 0.05
    assert needed_n(0.05, exact(0.05), exact(0.05)) is None
    assert needed_n(0.0, exact(0.05), exact(0.05)) == 59
