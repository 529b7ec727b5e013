"""Split conformal sets for a probe through MAPIE: per boundary {safe}, {unsafe}, both, or none.

A set says something about ONE boundary drawn at random; stopping at the first set {safe} is the cue-level
rule again, without a guarantee per trace (see `split`). For reports on a probe. One boundary of each trace,
drawn by seed, makes the rows: boundaries of one trace are not exchangeable with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.exact import exact_text
from desist.calibration.signals import Signals
from desist.calibration.split import conformal_rank
from desist.data.errors import CalibrationError

__all__ = ["ScoreClassifier", "SetShares", "one_boundary_each", "set_shares"]


@dataclass(frozen=True, slots=True)
class SetShares:
    """Shares of boundaries by their set, {safe}, {unsafe}, both, neither; `covered`: sets that are right."""

    safe: float
    unsafe: float
    both: float
    neither: float
    covered: float


def one_boundary_each(signals: Signals, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Score and loss of one boundary of each trace that has any, [m] and [m], drawn by seed."""
    there = ~np.isnan(signals.scores)
    rows = np.flatnonzero(there.any(axis=1))
    rng = np.random.default_rng(seed)
    columns = np.asarray([rng.choice(np.flatnonzero(there[row])) for row in rows], dtype=np.int64)
    return signals.scores[rows, columns], signals.bad[rows, columns]


def set_shares(
    calibration: tuple[NDArray[np.float64], NDArray[np.bool_]],
    test: tuple[NDArray[np.float64], NDArray[np.bool_]],
    alpha: Fraction,
) -> SetShares:
    """Sets at level `alpha`, conformalised on `calibration`, counted on `test`; each (scores, bad) of [m].

    Raises CalibrationError where calibration has too few boundaries for `alpha`, or not both kinds: MAPIE
    fails on the first with a message about quantiles.
    """
    from mapie.classification import SplitConformalClassifier

    scores, bad = calibration
    if conformal_rank(len(scores), alpha) is None:
        raise CalibrationError(
            f"{len(scores)} boundaries are too few for sets at alpha {exact_text(alpha)}. "
            f"Give at least {-(-alpha.denominator // alpha.numerator) - 1}."
        )
    if bad.all() or not bad.any():
        raise CalibrationError("all calibration boundaries are of one kind. Give both good and bad stops.")
    fitted = SplitConformalClassifier(ScoreClassifier(), confidence_level=float(1 - alpha), prefit=True)
    fitted.conformalize(scores[:, None], (~bad).astype(int))
    _, sets = fitted.predict_set(test[0][:, None])
    unsafe, safe = sets[:, 0, 0], sets[:, 1, 0]
    right = np.where(test[1], unsafe, safe)
    return SetShares(
        float((safe & ~unsafe).mean()),
        float((unsafe & ~safe).mean()),
        float((safe & unsafe).mean()),
        float((~safe & ~unsafe).mean()),
        float(right.mean()),
    )


class ScoreClassifier:
    """A score as a fitted classifier, the least that MAPIE takes: the probability of class 1 ("safe")."""

    classes_ = np.asarray([0, 1])

    def fit(self, rows: NDArray[np.float64], labels: Iterable[int]) -> ScoreClassifier:
        return self

    def predict_proba(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack([1 - rows[:, 0], rows[:, 0]])

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        return (rows[:, 0] > 0.5).astype(np.int64)

    def __sklearn_is_fitted__(self) -> bool:
        return True
