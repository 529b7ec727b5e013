from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.calibration import CannotCertify, Certificate, calibrate
from desist.calibration.exact import exact
from desist.calibration.shift import WEIGHT, shift_weights, traffic_print
from desist.calibration.simulation import simulate
from desist.calibration.split import conformal_quantile
from desist.calibration.validity import run_cells
from desist.calibration.validity_rules import shift_rules
from desist.calibration.weighted import effective_n, estimate_weights, kept_by_weight, weighted_thresholds
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_trace

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


def _kinds(n: int, hard: float, seed: int) -> list[Trace]:
    """Easy problems (short prompts) and a share of `hard` ones (long prompts, bad early scores)."""
    rng, made = np.random.default_rng(seed), []
    for place in range(n):
        heavy = rng.random() < hard
        bad = [bool(rng.random() < (0.5 if heavy else 0.1)), False]
        scores = [float(rng.random() * (0.9 if heavy else 0.5)), float(0.4 + 0.6 * rng.random())]
        trace = make_trace(
            scores, bad, name=f"{seed}-{place}", problem=f"{seed} {place} " + "long " * 60 * heavy
        )
        made.append(replace(trace, provenance={"w": 3.0 if heavy else 0.5}))
    return made


BASE = {"alpha": "0.1", "delta": "0.1", "loss": "consistency", "forbidden_problems": ()}


def test_a_weighted_certificate_says_assumption_and_effective_n() -> None:
    traces = _kinds(400, 0.2, 1)
    plain = calibrate(traces, method="split", **BASE)  # type: ignore[arg-type]
    found = calibrate(traces, method="weighted", weights="w", **BASE)  # type: ignore[arg-type]
    assert isinstance(found, Certificate)
    assert isinstance(plain, Certificate)
    assert found.guarantee == "mean"
    assert found.lam > plain.lam  # hard problems, where bad stops are, count three times
    assert found.n_effective == pytest.approx(
        effective_n(np.asarray([trace.provenance["w"] for trace in traces]))
    )
    assert f"worth {found.n_effective:.1f} equal ones" in found.text
    assert f"of weight {found.max_weight:.6g} at most" in found.text
    assert "only the prompts differ" in found.text
    assert found.covers((1 + found.lam) / 2)
    assert not found.covers(found.lam - 0.01)
    assert found.weighted_risk is not None
    assert found.weighted_risk > found.risk or found.n_bad == 0
    assert Certificate.model_validate_json(found.model_dump_json()) == found


def test_equal_weights_are_split_conformal() -> None:
    traces = [replace(trace, provenance={"w": 7}) for trace in _kinds(300, 0.2, 2)]
    plain = calibrate(traces, method="split", **BASE)  # type: ignore[arg-type]
    found = calibrate(traces, method="weighted", weights="w", **BASE)  # type: ignore[arg-type]
    assert isinstance(found, Certificate)
    assert isinstance(plain, Certificate)
    assert (found.lam, found.n_effective) == (plain.lam, 300)


def test_weights_that_leave_too_little_are_refused_with_a_reason() -> None:
    traces = _kinds(100, 0.2, 3)
    heavy = [replace(t, provenance={"w": 1000.0 if k == 0 else 1.0}) for k, t in enumerate(traces)]
    found = calibrate(heavy, method="weighted", weights="w", **BASE)  # type: ignore[arg-type]
    assert isinstance(found, CannotCertify)
    assert (found.reason, found.certified) == ("shift", False)
    assert found.n_effective == pytest.approx(1.2, abs=0.05)
    assert "worth 1.2 after weighting" in found.message
    with pytest.raises(CalibrationError, match=r"provenance.v = None"):
        calibrate(traces, method="weighted", weights="v", **BASE)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="max_weight is 1"):
        calibrate(traces, method="weighted", weights="w", max_weight=1.0, **BASE)  # type: ignore[arg-type]
    for settings_ in ({"method": "weighted"}, {"method": "ltt", "weights": "w"}):
        with pytest.raises(CalibrationError, match="go together"):
            calibrate(traces, **settings_, **BASE)  # type: ignore[arg-type]


def test_estimated_weights_find_the_shift_and_unknown_kinds_are_refused() -> None:
    traces, later = _kinds(600, 0.2, 4), _kinds(600, 0.6, 5)
    weights = np.asarray([trace.provenance[WEIGHT] for trace in shift_weights(traces, later)])
    hard = np.asarray([trace.provenance["w"] == 3.0 for trace in traces])
    assert weights[hard].mean() == pytest.approx(3.0, abs=0.5)
    assert weights[~hard].mean() == pytest.approx(0.5, abs=0.15)
    assert traffic_print(later) == traffic_print(later[::-1]) != traffic_print(traces)
    with pytest.raises(CalibrationError, match="later traffic holds code"):
        shift_weights(traces, [replace(trace, group="code") for trace in later])
    with pytest.raises(CalibrationError, match="50 of each"):
        shift_weights(traces, later[:49])


def test_under_a_known_shift_weights_keep_the_mean_risk_and_no_weights_break_it() -> None:
    """200 calibrations on 20,000 traces with more hard problems later; the risk there is known exactly."""
    people = simulate("lengths", 20_000, seed=1)
    alpha = exact("0.1")
    cells = {
        cell.method: cell
        for cell in run_cells("lengths", people, shift_rules(people, exact("0.05")), (500,), (alpha,), 200)
    }
    kept, broken = cells["weighted, one threshold"], cells["split, shift ignored"]
    assert kept.certified == 200
    assert kept.risk <= 0.1 + 4 * kept.risk_error, kept.text()
    assert broken.risk > 0.1 + 4 * broken.risk_error, broken.text()
