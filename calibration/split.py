"""Cue-level split conformal: the rule that LYNX uses, for comparison. NO GUARANTEE PER TRACE.

The threshold is a conformal quantile of the scores at bad boundaries, pooled over traces, so that one
fresh bad boundary exceeds it with probability at most alpha. A trace shows many boundaries and the policy
stops at the first crossing, so the risk per trace can be many times alpha; boundaries of one trace are
not exchangeable either. It stands here so that tables can show what it costs.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.pac import LOWEST
from desist.calibration.paths import Paths

__all__ = ["conformal_quantile", "conformal_rank", "cue_level_threshold"]


def conformal_rank(n: int, alpha: Fraction) -> int | None:
    """k = ceil((n + 1)(1 - alpha)), exact; None where k > n (then no finite quantile is valid)."""
    k = math.ceil((n + 1) * (1 - alpha))
    return k if k <= n else None


def conformal_quantile(scores: NDArray[np.float64], alpha: Fraction) -> float:
    """The k-th smallest of `scores` [n]; +inf where n is too small."""
    k = conformal_rank(len(scores), alpha)
    return math.inf if k is None else float(np.sort(scores)[k - 1])


def cue_level_threshold(paths: Paths, alpha: Fraction) -> float | None:
    """Threshold with P(score > lam | bad boundary) <= alpha, boundaries pooled; None: never stop."""
    pooled = paths.statistic[paths.bad & np.isfinite(paths.statistic)]
    quantile = conformal_quantile(pooled, alpha)
    return None if math.isinf(quantile) else max(LOWEST, quantile)
