from __future__ import annotations

import numpy as np
import pytest

from desist.calibration.exact import exact
from desist.calibration.reliability import order_p_value, score_reliability
from desist.calibration.sets import one_boundary_each, set_shares
from desist.calibration.simulation import simulate
from desist.data.errors import CalibrationError


def test_a_score_that_is_a_probability_passes_and_another_one_fails() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(2000)
    good = rng.random(2000) < scores
    true, false = score_reliability(scores, good), score_reliability(scores**3, good)
    assert true.ece < 0.06 < false.ece
    assert true.kolmogorov_smirnov_p > 0.01 > false.kolmogorov_smirnov_p
    assert true.spiegelhalter_p > 0.01 > false.spiegelhalter_p
    with pytest.raises(CalibrationError, match=r"\[0, 1\]"):
        score_reliability(np.asarray([0.5, np.nan]), np.asarray([True, False]))


def test_scores_that_rise_while_they_are_collected_are_not_exchangeable() -> None:
    rng = np.random.default_rng(1)
    scores = rng.random(300)
    scores[:10] = -np.inf
    assert order_p_value(np.sort(scores)) < 0.01
    assert order_p_value(rng.permutation(scores)) > 0.01
    with pytest.raises(CalibrationError, match="no numbers"):
        order_p_value(np.asarray([0.1, np.nan]))


def test_sets_cover_boundaries_one_of_each_trace_and_say_so_when_they_cannot() -> None:
    first = one_boundary_each(simulate("wobble", 600, seed=1).signals)
    second = one_boundary_each(simulate("wobble", 3000, seed=2).signals)
    found = set_shares(first, second, exact("0.1"))
    assert found.covered > 0.87
    assert found.safe + found.unsafe + found.both + found.neither == pytest.approx(1)
    few = (first[0][:18], first[1][:18])
    with pytest.raises(CalibrationError, match="at least 19"):
        set_shares(few, second, exact("0.05"))
    empty = simulate("lengths", 500, seed=1)
    assert (
        len(one_boundary_each(empty.signals)[0])
        == int((~np.isnan(empty.signals.scores)).any(axis=1).sum())
        < 500
    )
