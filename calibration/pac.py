"""Probably approximately correct thresholds by one order statistic of the critical scores.

Let C be a trace's critical score, so that its loss at threshold lam is at most 1{C > lam}. With n
independent traces and m the largest number of exceedances with P(Bin(n, alpha) <= m) <= delta, the
threshold C_(n-m) (the m+1st largest) has true exceedance probability at most alpha, with probability at
least 1 - delta over the calibration traces. Ties are safe: a score equal to the threshold never stops.
Vovk (2012), "Conditional validity of inductive conformal predictors"; Park et al. (2020).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from desist.calibration.exact import at_most
from desist.data.errors import CalibrationError

__all__ = ["LOWEST", "needed_n", "pac_rank", "pac_threshold", "smallest_n"]

LOWEST = 0.0
"""The lowest threshold ever handed out: scores lie in [0, 1] and a score of 0 never stops."""

_SEARCH_END = 10_000_000


@lru_cache(maxsize=4096)
def pac_rank(n: int, alpha: Fraction, delta: Fraction) -> int | None:
    """m = max{m : P(Bin(n, alpha) <= m) <= delta}; None where even m = 0 is too many (n too small)."""
    if n < 1 or not at_most(0, n, alpha, delta):
        return None
    low, high = 0, n  # P(Bin(n, alpha) <= n) is 1, more than delta
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at_most(middle, n, alpha, delta) else (low, middle)
    return low


@lru_cache(maxsize=256)
def smallest_n(alpha: Fraction, delta: Fraction) -> int:
    """Fewest traces with which anything can be certified: (1 - alpha)**n <= delta."""
    low, high = 0, 1
    while not at_most(0, high, alpha, delta):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(0, middle, alpha, delta) else (middle, high)
    return high


def needed_n(rate: float, alpha: Fraction, delta: Fraction, above: int = 0) -> int | None:
    """Traces needed to certify a policy that fails at `rate`; None where its rate itself is not below alpha.

    An estimate: it takes the observed rate for the true one.
    """
    if rate >= float(alpha):
        return None
    low, high = max(above, smallest_n(alpha, delta) - 1), max(above, 1) * 2

    def enough(n: int) -> bool:
        m = pac_rank(n, alpha, delta)
        return m is not None and m >= rate * n - 1e-9

    while not enough(high):
        low, high = high, high * 2
        if high > _SEARCH_END:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def pac_threshold(critical: NDArray[np.float64], alpha: Fraction, delta: Fraction) -> float | None:
    """lam = C_(n-m), at least 0; None where n is too small. `critical`: [n], -inf where no stop is bad."""
    if np.isnan(critical).any():
        raise CalibrationError(
            f"{int(np.isnan(critical).sum())} critical scores are not numbers. Score the traces again."
        )
    m = pac_rank(len(critical), alpha, delta)
    if m is None:
        return None
    ordered = np.sort(critical)
    return max(LOWEST, float(ordered[len(critical) - m - 1]))
