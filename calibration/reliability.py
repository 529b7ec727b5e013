"""Is a score calibrated as a probability, and are the calibration problems exchangeable in their order?

Both through MAPIE, on one number per trace, since boundaries of one trace depend on each other. Neither is
part of a guarantee: thresholds need no calibrated scores, and a test that does not reject proves nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from desist.calibration.sets import ScoreClassifier
from desist.data.errors import CalibrationError

__all__ = ["Reliability", "order_p_value", "score_reliability"]

_BINS = 15


@dataclass(frozen=True, slots=True)
class Reliability:
    """`ece`: expected calibration error; the others are p-values of "the score is the probability"."""

    n: int
    ece: float
    kolmogorov_smirnov_p: float
    spiegelhalter_p: float


def score_reliability(scores: NDArray[np.float64], good: NDArray[np.bool_]) -> Reliability:
    """How far `scores` [n] are from the probability that a stop is `good` [n]; one boundary of each trace.

    Raises CalibrationError for no scores, or scores that are not numbers in [0, 1].
    """
    from mapie.metrics.calibration import (
        expected_calibration_error,
        kolmogorov_smirnov_p_value,
        spiegelhalter_p_value,
    )

    if not len(scores) or not ((scores >= 0) & (scores <= 1)).all():
        raise CalibrationError(f"{len(scores)} scores, not all numbers in [0, 1]. Score the traces again.")
    labels = good.astype(int)
    inner = np.clip(scores, 1e-9, 1 - 1e-9)  # a score of 0 or 1 has no variance, which the tests divide by
    return Reliability(
        len(scores),
        float(expected_calibration_error(labels, scores, num_bins=_BINS)),
        float(kolmogorov_smirnov_p_value(labels, inner)),
        float(spiegelhalter_p_value(labels, inner)),
    )


def order_p_value(scores: NDArray[np.float64], seed: int = 0, permutations: int = 999) -> float:
    """P-value of "the scores [n] are exchangeable in the order given" (that in which they were collected).

    `scores` in [0, 1], or -inf where no stop is bad (as 0). MAPIE's permutation test of the largest
    difference of means before and after any place.
    """
    from mapie.classification import SplitConformalClassifier
    from mapie.exchangeability_testing import PValuePermutationTest

    if np.isnan(scores).any() or len(scores) < 2:
        raise CalibrationError(f"{len(scores)} scores, or some that are no numbers. Score the traces again.")
    # With every label 0 the conformity score that MAPIE computes is the score itself.
    fitted = SplitConformalClassifier(ScoreClassifier(), prefit=True)
    test = PValuePermutationTest(
        mapie_estimator=fitted, random_state=seed, num_permutations=permutations, warn=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that only one label occurs: as intended
        test.run(np.clip(scores, 0, 1)[:, None], np.zeros(len(scores), dtype=np.int64))
    return float(test.p_values[-1])
