"""Conformal risk control: thresholds for mean losses, in expectation.

lam = inf{lam : n/(n+1) Rhat(lam) + B/(n+1) <= alpha} gives E[loss of a new trace] <= alpha for losses
bounded by B that do not increase with lam (Angelopoulos et al. 2022, "Conformal risk control", eq. 4). The
expectation is over calibration AND test traces: there is no delta. A loss that is not monotone is replaced
by its envelope sup over higher thresholds; without that the method can fail.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.exact import exact
from desist.calibration.losses import PARTS
from desist.calibration.paths import Paths, Steps, weigh
from desist.data.errors import CalibrationError

__all__ = ["crc_last", "crc_threshold", "envelope", "envelope_parts"]


def envelope(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, g], thresholds ordered HIGHEST first -> the smallest bound that never falls along the row."""
    return np.asarray(np.maximum.accumulate(losses, axis=1))


def envelope_parts(paths: Paths, found: Steps, grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sum over traces of the envelope of their losses, in parts of 1/PARTS, at each threshold of `grid` [g].

    At a step the envelope is the largest loss of the trace's steps from there up.
    """
    if paths.parts is None:
        parts = PARTS * paths.bad[found.row, found.column].astype(np.int64)
    else:
        parts = paths.parts[found.row, found.column].astype(np.int64)
    # Rows count downwards from the end, so that one running maximum serves all of them.
    lift = (PARTS + 1) * (found.row.max(initial=0) - found.row)
    bound = np.maximum.accumulate((parts + lift)[::-1])[::-1] - lift
    return weigh(found, bound, grid)


def crc_last(totals: NDArray[np.int64], n: int, alpha: Fraction, scale: int = 1) -> int:
    """Index of the last threshold allowed, -1 for none. `totals` [g], never falling, in units of 1/scale."""
    room = alpha * (n + 1) - 1
    return int(np.searchsorted(totals, int(scale * room // 1), side="right")) - 1 if room >= 0 else -1


def crc_threshold(
    losses: NDArray[np.float64], grid: NDArray[np.float64], alpha: Fraction, bound: object = 1
) -> float | None:
    """The lowest grid threshold that conformal risk control allows; None: not even the highest.

    `losses`: [n, g] in [0, bound]; `grid`: [g], highest first. The grid must be fixed beforehand.
    """
    if losses.ndim != 2 or losses.shape[1] != len(grid):
        raise CalibrationError(
            f"losses are {losses.shape} for {len(grid)} thresholds; need [n, {len(grid)}]."
        )
    if not np.isfinite(losses).all() or (losses < 0).any() or (losses > float(exact(bound))).any():
        raise CalibrationError(f"losses must be numbers in [0, {bound}]. Give the right bound.")
    n = len(losses)
    totals = envelope(losses).sum(axis=0)
    room = alpha * (n + 1) - exact(bound)
    allowed = np.flatnonzero([Fraction(float(total)) <= room for total in totals])
    return float(grid[allowed[-1]]) if len(allowed) else None
