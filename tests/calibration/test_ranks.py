"""Exact ranks where floats slip: cells in which the usual formulas pick a wrong order statistic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from desist.calibration.exact import exact
from desist.calibration.losses import PARTS
from desist.calibration.ltt import share_p_values
from desist.calibration.split import conformal_quantile, conformal_rank

ALPHAS = ("0.01", "0.05", "0.1", "0.2", "0.3", "0.5")


@pytest.mark.parametrize(
    ("alpha", "n", "right", "slipped"),
    [("0.18", 149, 123, 124), ("0.172", 249, 207, 208)],
)
def test_a_rank_computed_in_floats_slips_and_ours_does_not(
    alpha: str, n: int, right: int, slipped: int
) -> None:
    assert math.ceil((1 - float(alpha)) * (n + 1)) == slipped
    assert conformal_rank(n, exact(alpha)) == right
    assert conformal_rank(n, exact(float(alpha))) == right


def test_R62_a_quantile_by_numpy_slips_and_ours_does_not() -> None:
    scores = np.arange(1.0, 40.0)
    assert float(np.quantile(scores, 40 * (1 - 0.05) / 39, method="higher")) == 39.0
    assert conformal_quantile(scores, exact("0.05")) == 38.0


def test_a_mean_times_n_slips_and_our_p_values_do_not() -> None:
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    mean = 7 / 25
    assert math.ceil(25 * mean) == 8
    alpha, delta = exact("0.5"), exact("0.05")
    slipped = compute_hoeffding_bentkus_p_value(np.asarray([mean]), 25, 0.5, binary=False)[0, 0]
    exact_p = compute_hoeffding_bentkus_p_value(np.asarray([np.nextafter(mean, 0)]), 25, 0.5, binary=False)[
        0, 0
    ]
    ours = share_p_values(np.asarray([7 * PARTS]), 25, alpha, delta)[0]
    assert ours == pytest.approx(exact_p, rel=1e-12)
    assert ours <= slipped


def test_R62_the_225_cells_in_which_numpys_quantile_is_wrong() -> None:
    wrong = 0
    for alpha in ALPHAS:
        level = Fraction(alpha)
        for n in range(5, 201):
            scores = np.arange(1.0, n + 1)
            k = -(-(n + 1) * (level.denominator - level.numerator) // level.denominator)
            assert conformal_quantile(scores, exact(float(alpha))) == (k if k <= n else math.inf)
            share = (n + 1) * (1 - float(alpha)) / n
            if k <= n:
                wrong += float(np.quantile(scores, min(1.0, share), method="higher")) != k
    assert wrong == 225


def test_R62_ranks_for_all_levels_in_thousandths() -> None:
    slips = 0
    for thousandth in range(1, 1000, 7):
        alpha = exact(thousandth / 1000)
        for n in range(1, 401):
            k = -(-(n + 1) * (1000 - thousandth) // 1000)
            assert conformal_rank(n, alpha) == (k if k <= n else None)
            slips += math.ceil((1 - thousandth / 1000) * (n + 1)) != k
    assert slips > 0
