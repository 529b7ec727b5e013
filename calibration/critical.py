"""The critical score of a trace: the largest threshold at which its policy would make a bad stop.

The policy stops at the first boundary whose statistic exceeds lam, so only running-maximum records can be
stops. C = max{statistic at bad records}; then loss(lam) <= 1{C > lam} for every lam, and that indicator is
the smallest non-increasing function of lam that bounds the loss. Patience, warm-up and smoothing are
inside the statistic (`paths`), so the same statement covers them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from desist.calibration.paths import Paths

__all__ = ["critical_scores", "maximum_scores", "records"]


def records(statistic: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[n, t] -> [n, t]: where a value exceeds all earlier ones of its row (-inf never does)."""
    running = np.maximum.accumulate(statistic, axis=1)
    before = np.full_like(running, -np.inf)
    before[:, 1:] = running[:, :-1]
    return np.asarray(statistic > before)


def critical_scores(paths: Paths) -> NDArray[np.float64]:
    """C per trace, [n]; -inf where no threshold leads to a bad stop. Of a problem: `paths.per_problem`."""
    return _largest(paths.statistic, paths.bad & records(paths.statistic))


def maximum_scores(paths: Paths) -> NDArray[np.float64]:
    """M per trace, [n]: the largest statistic at ANY bad boundary. M >= C: valid too, never sharper."""
    return _largest(paths.statistic, paths.bad)


def _largest(statistic: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    if statistic.shape[1] == 0:
        return np.full(statistic.shape[0], -np.inf)
    return np.asarray(np.where(where, statistic, -np.inf).max(axis=1))
