"""A policy's shape applied to scores: the STATISTIC that is compared with the threshold at each boundary.

Patience, warm-up and smoothing as in the stop machine, for all traces at once: column by column, since each
reads only the past. `desist.controller.replay` is the specification, and a test holds the two together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from desist.controller.core import Policy

__all__ = ["shaped"]


def shaped(
    scores: NDArray[np.float64],
    positions: NDArray[np.int64],
    held: NDArray[np.bool_],
    policy: Policy,
) -> NDArray[np.float64]:
    """What the stop machine compares with lam at each boundary, [n, t]; -inf where it cannot stop.

    `scores`: [n, t], nan where a boundary has none or is not there; `positions`: reasoning tokens before
    each; `held`: a hold-off zone is open there. The threshold of `policy` is not used.
    """
    n, width = scores.shape
    statistic = np.full((n, width), -np.inf)
    recent = np.full((n, policy.patience), -np.inf)
    smoothed = np.full(n, np.nan)
    seen = np.full(n, -1, dtype=np.int64)
    for column in range(width):
        score, place = scores[:, column], positions[:, column]
        # A boundary without a score, or that does not lie after the last one, is passed over.
        rows = np.flatnonzero(~np.isnan(score) & (place > seen))
        if len(rows) == 0:
            continue
        seen[rows] = place[rows]
        before = smoothed[rows]
        mixed = policy.ema * score[rows] + (1.0 - policy.ema) * before
        now = np.where(np.isnan(before), score[rows], mixed)
        smoothed[rows] = now
        counted = np.where(place[rows] >= policy.warmup_tokens, now, -np.inf)
        if policy.patience == 1:
            least = counted
        else:
            recent[rows, :-1] = recent[rows, 1:]
            recent[rows, -1] = counted
            least = recent[rows].min(axis=1)
        statistic[rows, column] = np.where(held[rows, column], -np.inf, least)
    return statistic
