"""Other traffic than the calibration problems: weighted conformal thresholds under covariate shift.

The problems may differ in kind (prompts) as long as what happens on a given problem does not: then each
calibration problem counts with weight w = dP_new / dP_calibration of its prompt, and
q(x) = inf{q : sum_i p_i 1{c_i <= q} >= 1 - alpha}, with p_i = w_i / (sum w + w(x)) and the rest at +inf,
is exceeded by a new critical score with probability at most alpha (Tibshirani et al. 2019). It depends on
the new prompt's own weight, so the threshold is one per request. On average over calibrations, no delta;
and with estimated weights only up to half of E|w_estimated - w|. With weights that are known up to a bound
`kept_by_weight` thins the calibration problems to ones of the new kind instead: on these the PAC order
statistic holds as it stands (Park et al. 2022). Knows numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.exact import exact_text
from desist.calibration.pac import LOWEST
from desist.data.errors import CalibrationError

__all__ = ["WeightedThresholds", "effective_n", "estimate_weights", "kept_by_weight", "weighted_thresholds"]

_UNITS = 2**20
"""Weights are counted in whole units of 1/_UNITS: sums are exact, and equal weights stay equal."""

_CLIP = 20.0


@dataclass(frozen=True, slots=True)
class WeightedThresholds:
    """Thresholds by the weight of the new prompt. `n_effective` = (sum w)^2 / sum w^2.

    `scores` [n], rising, with the running sums of their weights `mass` [n] in whole units.
    """

    alpha: Fraction
    scores: NDArray[np.float64]
    mass: NDArray[np.int64]
    n_effective: float

    def threshold(self, weight: float) -> float:
        """lam for a new prompt of this weight, at least 0; +inf: never stop."""
        total = int(self.mass[-1]) + _units(np.asarray([weight]))[0]
        needed = math.ceil((1 - self.alpha) * int(total))
        place = int(np.searchsorted(self.mass, needed, side="left"))
        return max(LOWEST, float(self.scores[place])) if place < len(self.scores) else math.inf


def effective_n(weights: NDArray[np.float64]) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted problems the weighted ones are worth."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def weighted_thresholds(
    scores: NDArray[np.float64], weights: NDArray[np.float64], alpha: Fraction
) -> WeightedThresholds:
    """Weighted split conformal on critical scores [n] with the weights [n] of their problems.

    Raises CalibrationError where weights are no positive numbers, scores are not numbers, or the effective n
    is too small for any finite threshold at `alpha` (1/alpha - 1).
    """
    if len(scores) != len(weights) or not len(scores):
        raise CalibrationError(
            f"{len(scores)} scores with {len(weights)} weights. Give one weight a problem."
        )
    if np.isnan(scores).any():
        raise CalibrationError(
            f"{int(np.isnan(scores).sum())} critical scores are not numbers. Score the traces again."
        )
    found, least = effective_n(_checked(weights)), math.ceil(1 / alpha) - 1
    if found < least:
        raise CalibrationError(
            f"the {len(scores)} problems are worth {found:.1f} after weighting, alpha {exact_text(alpha)} "
            f"needs {least}: the new traffic is too different. Calibrate on audits of the new traffic."
        )
    order = np.argsort(scores, kind="stable")
    return WeightedThresholds(alpha, scores[order], np.cumsum(_units(weights[order])), found)


def estimate_weights(
    calibration: NDArray[np.float64], traffic: NDArray[np.float64], clip: float = _CLIP, seed: int = 0
) -> NDArray[np.float64]:
    """Weights of the calibration problems from features of their prompts, [n]; both inputs [*, features].

    The odds of a logistic classifier "from the new traffic" against "from calibration", fitted on other folds
    than the problem's own, times n_calibration / n_traffic, between 1/`clip` and `clip`.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if calibration.ndim != 2 or traffic.ndim != 2 or calibration.shape[1] != traffic.shape[1]:
        raise CalibrationError(
            f"features are {calibration.shape} and {traffic.shape}; give [problems, features] alike for both."
        )
    if not (np.isfinite(calibration).all() and np.isfinite(traffic).all()):
        raise CalibrationError("features hold values that are not numbers. Embed the prompts again.")
    rows = np.concatenate([calibration, traffic])
    new = np.concatenate([np.zeros(len(calibration), dtype=int), np.ones(len(traffic), dtype=int)])
    order = np.random.default_rng(seed).permutation(len(rows))
    model = make_pipeline(StandardScaler(), LogisticRegression())
    chance = np.empty(len(rows))
    chance[order] = cross_val_predict(model, rows[order], new[order], cv=5, method="predict_proba")[:, 1]
    mine = chance[: len(calibration)]
    odds = mine / np.maximum(1 - mine, 1e-12) * len(calibration) / len(traffic)
    return np.asarray(np.clip(odds, 1 / clip, clip))


def kept_by_weight(weights: NDArray[np.float64], bound: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Rejection sampling: which problems to keep, [n], each with probability w / `bound`.

    The draw must not look at scores or losses. Raises CalibrationError for a weight above `bound`.
    """
    if (_checked(weights) > bound).any():
        raise CalibrationError(f"the largest weight is {weights.max():.6g}, above the bound {bound:.6g}.")
    return np.asarray(rng.random(len(weights)) * bound < weights)


def _checked(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        raise CalibrationError(
            f"{int(wrong.sum())} of {len(weights)} weights are not positive numbers. Estimate them again."
        )
    return weights


def _units(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Weights in whole units, at least one."""
    return np.asarray(np.maximum(1, np.round(_UNITS * _checked(weights))), dtype=np.int64)
