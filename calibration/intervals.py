"""Exact intervals and paired tests for counts, and seeded bootstrap intervals for paired figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, betaincinv

__all__ = [
    "Interval",
    "clopper_pearson",
    "excess_p",
    "mcnemar_p",
    "mean_interval",
    "median_interval",
    "paired_share",
    "ratio_difference",
]

_LEVEL = 0.95
_RESAMPLES = 2000


class Interval(NamedTuple):
    """A two-sided 95 % interval."""

    low: float
    high: float


def clopper_pearson(count: int, n: int, level: float = _LEVEL) -> Interval:
    """Exact interval of a binomial share; (0, 1) for n = 0."""
    if n == 0:
        return Interval(0.0, 1.0)
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - tail))
    return Interval(low, high)


def mean_interval(mean: float, n: int, level: float = _LEVEL) -> Interval:
    """Hoeffding's interval of the mean of n values in [0, 1]: wide, but valid for any of them."""
    if n == 0:
        return Interval(0.0, 1.0)
    reach = math.sqrt(math.log(2 / (1 - level)) / (2 * n))
    return Interval(max(0.0, mean - reach), min(1.0, mean + reach))


def excess_p(count: int, n: int, alpha: float) -> float:
    """One-sided exact p-value of "the true risk is at most alpha": P(Bin(n, alpha) >= count)."""
    return 1.0 if count <= 0 else float(bdtrc(count - 1, n, alpha))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test from the two discordant counts."""
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), discordant, 0.5)))


def paired_share(plus: int, minus: int, n: int, seed: int = 0) -> Interval:
    """Bootstrap interval of (plus - minus) / n, where each of n pairs counts +1, -1 or 0."""
    if n == 0:
        return Interval(-1.0, 1.0)
    shares = [plus / n, minus / n, 1 - (plus + minus) / n]
    draws = np.random.default_rng(seed).multinomial(n, shares, size=_RESAMPLES)
    return _percentiles((draws[:, 0] - draws[:, 1]) / n)


def ratio_difference(
    first: NDArray[np.int64], second: NDArray[np.int64], base: NDArray[np.int64], seed: int = 0
) -> Interval:
    """Bootstrap interval over traces of sum(first) / sum(base) - sum(second) / sum(base); all [n]."""
    n = len(base)
    if n == 0:
        return Interval(-1.0, 1.0)
    rng = np.random.default_rng(seed)
    gaps = (first - second).astype(np.float64)
    found = np.empty(_RESAMPLES)
    for draw in range(_RESAMPLES):
        rows = rng.integers(0, n, size=n)
        found[draw] = gaps[rows].sum() / max(1, base[rows].sum())
    return _percentiles(found)


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Bootstrap interval of the median of repeated measurements; (-inf, inf) for none."""
    if not values:
        return Interval(-math.inf, math.inf)
    measured = np.asarray(values, dtype=np.float64)
    rows = np.random.default_rng(seed).integers(0, len(measured), size=(_RESAMPLES, len(measured)))
    return _percentiles(np.median(measured[rows], axis=1))


def _percentiles(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high))
