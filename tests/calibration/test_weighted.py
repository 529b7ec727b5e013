from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.calibration.exact import exact
from desist.calibration.split import conformal_quantile
from desist.calibration.weighted import effective_n, estimate_weights, kept_by_weight, weighted_thresholds
from desist.data.errors import CalibrationError

ALPHA = exact("0.1")


@settings(deadline=None)
@given(st.lists(st.sampled_from([-math.inf, 0.1, 0.3, 0.3, 0.7, 0.9]), min_size=9, max_size=60))
def test_equal_weights_give_the_plain_quantile(values: list[float]) -> None:
    scores = np.asarray(values)
    found = weighted_thresholds(scores, np.ones(len(scores)), ALPHA)
    assert found.threshold(1.0) == max(0.0, conformal_quantile(scores, ALPHA))
    assert found.n_effective == pytest.approx(len(scores))


def test_a_problem_twice_is_a_problem_of_weight_two() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(40)
    twice = weighted_thresholds(np.concatenate([scores, scores[:10]]), np.ones(50), ALPHA)
    heavy = weighted_thresholds(scores, np.where(np.arange(40) < 10, 2.0, 1.0), ALPHA)
    for weight in (0.1, 1.0, 2.5):
        assert twice.threshold(weight) == heavy.threshold(weight)


def test_thresholds_equal_the_definition_and_rise_with_the_prompts_own_weight() -> None:
    rng = np.random.default_rng(1)
    scores, weights = rng.random(60), rng.integers(1, 9, 60) / 4
    found = weighted_thresholds(scores, weights, ALPHA)
    thresholds = []
    for own in (0.25, 1.0, 3.0, 9.0, 100.0):
        total = sum(map(Fraction, weights)) + Fraction(own)
        allowed = [
            q for q in sorted(scores)
            if sum(Fraction(w) for w, c in zip(weights, scores, strict=True) if c <= q) / total >= 1 - ALPHA
        ]  # fmt: skip
        thresholds.append(found.threshold(own))
        assert thresholds[-1] == (allowed[0] if allowed else math.inf)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == math.inf


def test_too_few_effective_problems_and_bad_weights_are_refused() -> None:
    scores = np.linspace(0, 1, 100)
    weights = np.ones(100)
    weights[0] = 1000.0
    assert effective_n(weights) < 2
    with pytest.raises(CalibrationError, match=r"100 problems are worth 1\.2 .* needs 9"):
        weighted_thresholds(scores, weights, ALPHA)
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(CalibrationError, match="1 of 100 weights"):
            weighted_thresholds(scores, np.where(np.arange(100) == 3, wrong, 1.0), ALPHA)
    with pytest.raises(CalibrationError, match="above the bound"):
        kept_by_weight(weights, 10.0, np.random.default_rng(0))


def test_estimated_weights_are_near_the_true_ratio() -> None:
    rng = np.random.default_rng(2)
    old, new = rng.normal(0, 1, (3000, 2)), rng.normal([0.5, 0], 1, (3000, 2))
    found = estimate_weights(old, new)
    true = np.exp(0.5 * old[:, 0] - 0.125)
    assert np.corrcoef(np.log(found), np.log(true))[0, 1] > 0.95
    assert found.mean() == pytest.approx(1, abs=0.1)
    with pytest.raises(CalibrationError, match="alike for both"):
        estimate_weights(old, new[:, :1])
