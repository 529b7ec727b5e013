"""Learn then Test on the first-crossing loss: fixed-sequence testing with exact binomial p-values.

For each threshold of a grid fixed beforehand, H: "the risk at lam exceeds alpha". The losses are 0 or 1,
so with n independent traces P(Bin(n, alpha) <= number of losses) is a p-value, exact from the integer
count. Thresholds are tested from the safest (highest) down and testing ends at the first one not
rejected; with probability at least 1 - delta all rejected thresholds have risk at most alpha, whichever
of them is then chosen, on whatever grounds (Angelopoulos et al. 2021, "Learn then Test"; Bauer 1991).
Needs no monotone loss. The family-wise step is MAPIE's `control_fwer`, which takes the order as given.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from desist.calibration.losses import PARTS
from desist.calibration.pac import pac_rank
from desist.data.errors import CalibrationError

__all__ = [
    "DEFAULT_GRID",
    "accepted",
    "accepted_p",
    "default_grid",
    "grid_of_scores",
    "p_values",
    "share_p_values",
]

DEFAULT_GRID: Literal["default-1"] = "default-1"
"""Name of the default grid, as written into certificates: another grid needs another name."""


# Relative distance within which a float p-value is not trusted to be on the right side of delta.
_TOO_CLOSE = 1e-9


def default_grid() -> NDArray[np.float64]:
    """Thresholds from 1 (never stops) downward: thousandths, and steps of 0.01 on the logit scale.

    Depends on no data. The logit part keeps it fine where a confident scorer crowds near 1.
    """
    thousandths = np.arange(1001) / 1000
    logit = np.round(1 / (1 + np.exp(-np.arange(-700, 1401) / 100)), 9)
    return np.asarray(np.unique(np.concatenate([thousandths, logit]))[::-1])


def grid_of_scores(scores: NDArray[np.float64], size: int = 1000) -> NDArray[np.float64]:
    """A grid of the quantiles of scores from TRAINING traces, highest first, beginning at 1 (never stops).

    The scores must come from traces that are not in the calibration set.
    """
    quantiles = np.quantile(scores[np.isfinite(scores)], np.linspace(0, 1, size), method="inverted_cdf")
    return np.asarray(np.unique(np.append(quantiles, 1.0))[::-1])


def p_values(losses: NDArray[np.int64], n: int, alpha: Fraction, delta: Fraction) -> NDArray[np.float64]:
    """P(Bin(n, alpha) <= losses), [g], with the comparison to delta made exact.

    `losses`: number of traces with a loss at each threshold. Where a float tail falls on the wrong side
    of delta it is moved to the right side by one unit in the last place.
    """
    if n < 1:
        raise CalibrationError("no calibration trace is left. Give at least one scored, labelled trace.")
    p = np.asarray(bdtr(losses, n, float(alpha)), dtype=np.float64)
    most, limit = pac_rank(n, alpha, delta), float(delta)
    small = losses <= (-1 if most is None else most)
    return np.asarray(np.where(small, np.minimum(p, limit), np.maximum(p, np.nextafter(limit, 2))))


def share_p_values(parts: NDArray[np.int64], n: int, alpha: Fraction, delta: Fraction) -> NDArray[np.float64]:
    """Hoeffding-Bentkus p-values of a mean loss in [0, 1], [g], from its sums in parts of 1/PARTS.

    MAPIE's own, which needs care twice: it rounds n times the mean up in floats, where an exact 7 may come
    out as 8, and its comparison with delta is not exact. So the mean is moved, within its last place, to
    where the float product rounds to the true number; and a p-value too close to delta counts as above it.
    """
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    if n < 1:
        raise CalibrationError("no calibration trace is left. Give at least one scored, labelled trace.")
    mean = parts / (n * PARTS)
    mean = np.where(np.ceil(n * mean) > -(-parts // PARTS), np.nextafter(mean, -1), mean)
    p = compute_hoeffding_bentkus_p_value(mean, n, float(alpha), binary=False)[:, 0]
    limit = float(delta)
    near = np.abs(p - limit) <= _TOO_CLOSE * limit
    return np.asarray(np.where(near, np.nextafter(limit, 2), np.minimum(p, 1)))


def accepted(losses: NDArray[np.int64], n: int, alpha: Fraction, delta: Fraction) -> NDArray[np.int64]:
    """Indices of the thresholds whose risk is certified, given counts ordered safest threshold first."""
    return accepted_p(p_values(losses, n, alpha, delta), delta)


def accepted_p(p: NDArray[np.float64], delta: Fraction) -> NDArray[np.int64]:
    """The same from p-values: those before the first one above delta."""
    from mapie.risk_control import control_fwer  # a second of import time: only calibration pays it

    if np.isnan(p).any():
        raise CalibrationError(
            f"{int(np.isnan(p).sum())} of {len(p)} p-values are not numbers. The loss counts are damaged."
        )
    above = np.flatnonzero(p > float(delta))
    if len(
        above
    ):  # what comes later can change nothing, and MAPIE's time grows with the square of the length
        p = p[: above[0] + 1]
    return np.asarray(control_fwer(p, float(delta), fwer_method="split_fixed_sequence"), dtype=np.int64)
