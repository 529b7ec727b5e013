"""Methods, losses and conventions beyond the two default ones, through `calibrate` where users meet them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.calibration import CannotCertify, Certificate, calibrate
from desist.calibration.choose import choose
from desist.calibration.crc import crc_threshold, envelope_parts
from desist.calibration.critical import critical_scores
from desist.calibration.losses import PARTS, token_regret
from desist.calibration.paths import Paths, build_paths, paths_of, steps, sweep
from desist.calibration.plan import METHODS, Plan
from desist.calibration.scorers import stored
from desist.calibration.signals import build_signals
from desist.calibration.simulation import simulate
from desist.calibration.two_sided import give_up_paths, two_sided_stops
from desist.calibration.uncertified import Uncertified
from desist.controller.core import Policy
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_trace, make_traces, random_paths

BASE = {"alpha": 0.1, "delta": 0.1, "loss": "consistency", "forbidden_problems": ()}


def run(traces: list[Trace], **settings: object) -> Certificate | CannotCertify:
    return calibrate(traces, **{**BASE, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [method for method in METHODS if method != "weighted"])
def test_every_method_says_what_it_guarantees(method: str) -> None:
    found = run(make_traces(400, 7), method=method)
    assert found.guarantee == {"split": "mean", "crc": "mean", "cue-level": "none"}.get(method, "pac")
    if method == "cue-level":
        assert isinstance(found, Uncertified)
        assert not found.certified
        assert found.policy().lam is None
        assert found.lam is not None
        assert found.risk > 0.1
        return
    assert isinstance(found, Certificate)
    assert ("On average over" in found.text) == (found.guarantee == "mean")
    assert found.covers(found.lam)
    assert found.covers(0.98765) == (method in ("pac", "split", "crc"))
    assert found.n + found.n_order == 400
    assert (found.n_order > 0) == (method == "pareto")


def test_pareto_certifies_only_pairs_that_it_tested() -> None:
    found = run(make_traces(500, 3), method="pareto")
    assert isinstance(found, Certificate)
    assert found.lam in found.grid_values
    assert 90 < found.n_order < 210
    assert found.n_bad / found.n <= 0.1
    assert len(found.problems) == 500
    few = run(make_traces(31, 3), method="pareto")
    assert isinstance(few, CannotCertify)
    assert (few.reason, few.needed_n) == ("too_few", 32)  # 22 to test, of which 7 in 10 do


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_conformal_risk_control_on_steps_equals_the_one_on_a_matrix(seed: int) -> None:
    paths = random_paths(np.random.default_rng(seed), 60, t=6)
    parts = np.where(paths.bad, np.random.default_rng(seed).integers(1, PARTS + 1, paths.bad.shape), 0)
    graded = replace(paths, parts=parts.astype(np.int32))
    grid = np.arange(50, -1, -1) / 50
    matrix = np.zeros((60, 51))
    for place, lam in enumerate(grid):
        stops = graded.stops(float(lam))
        matrix[:, place] = np.where(stops >= 0, parts[np.arange(60), stops], 0) / PARTS
    np.testing.assert_allclose(sweep(graded, grid).risk, matrix.mean(axis=0))
    # Between grid points the loss may be higher: the envelope of the steps sees that, the matrix's may not.
    ours = envelope_parts(graded, steps(graded), grid) / PARTS
    assert (ours + 1e-9 >= np.maximum.accumulate(matrix, axis=1).sum(axis=0)).all()
    plan = Plan(alpha="0.2", delta="0.1", loss="token-regret", scorer="probe", method="crc")
    lam, theirs = choose(plan, graded, grid).lam, crc_threshold(matrix, grid, plan.alpha)
    assert lam is None or (theirs is not None and lam >= theirs)


def test_token_regret_is_the_share_that_was_still_needed() -> None:
    trace = make_trace([0.1] * 4, [True, False, True, False], gap=50)  # 250 tokens, settled at 200
    assert token_regret(trace, [True, False, True, False]) == [600, 0, 200, 0]
    never = make_trace([0.1] * 2, [False, True], gap=50)  # 150 tokens, wrong until the end
    assert token_regret(never, [False, True]) == [0, 334]
    assert token_regret(replace(never, truncated=True), [True, True]) == [PARTS, PARTS]
    found = run(make_traces(600, 5), loss="token-regret", method="crc")
    assert isinstance(found, Certificate)
    assert found.risk <= 0.1 < found.n_bad / found.n
    assert "expected share of the run's reasoning" in found.text


def test_several_risks_hold_at_once() -> None:
    traces = make_traces(600, 8, accuracy=0.7)
    for method in ("ltt", "pac"):
        alone = run(traces, method=method)
        strict = run(traces, method=method, loss="harm", alpha="0.05")
        both = run(traces, method=method, risks={"harm": "0.05"})
        assert isinstance(alone, Certificate)
        assert isinstance(strict, Certificate)
        assert isinstance(both, Certificate)
        assert both.lowest == max(alone.lowest, strict.lowest)
        assert "at most 10 %, and the probability that the full run's answer is right" in both.text
        assert "risks" in both.model_dump(mode="json")
        assert "risks" not in alone.model_dump(mode="json")


def test_the_worst_sample_of_a_problem_counts() -> None:
    traces = make_traces(300, 2)
    again = [
        replace(other, trace_id=f"{other.trace_id}-again", problem=trace.problem, problem_id=trace.problem_id)
        for trace, other in zip(traces, make_traces(300, 3), strict=True)
    ]
    for method in ("pac", "ltt"):
        one, worst = run(traces + again, method=method), run(traces + again, method=method, samples="worst")
        assert isinstance(one, Certificate)
        assert isinstance(worst, Certificate)
        assert (one.n, worst.n, worst.other_samples) == (300, 300, 300)
        assert worst.lowest > one.lowest
        assert "when any of its samples is" in worst.text


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_problems_lost_at_each_threshold_equal_a_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paths = replace(random_paths(rng, 40, t=5), problem=np.arange(40) // 3)
    grid = np.arange(40, -1, -1) / 40
    expected = []
    for lam in grid:
        stops = paths.stops(float(lam))
        lost = (stops >= 0) & paths.bad[np.arange(40), stops]
        expected.append(len(set((np.arange(40) // 3)[lost])))
    assert sweep(paths, grid).losses.tolist() == expected
    assert paths.n == 14
    assert paths.per_problem(critical_scores(paths))[0] == critical_scores(paths)[:3].max()


def test_giving_up_has_a_threshold_and_a_risk_of_its_own() -> None:
    rng = np.random.default_rng(4)
    traces = []
    for number in range(500):
        hopeless = rng.random() < 0.3
        scores = rng.uniform(0.0, 0.2, 6) if hopeless else np.sort(rng.uniform(0.1, 1, 6))
        traces.append(
            make_trace(
                scores.tolist(), [bool(s < 0.6) for s in scores], name=str(number), full_correct=not hopeless
            )
        )
    one, two = run(traces, method="pac"), run(traces, method="pac", give_up_alpha="0.1", give_up_after=120)
    assert isinstance(one, Certificate)
    assert isinstance(two, Certificate)
    assert two.give_up is not None
    assert two.n_given_up > 50
    assert two.saved_fraction > one.saved_fraction
    assert "given up which the full run answers right is at most 10 %" in two.text
    # By hand: the first boundary at 120 tokens or later with 1 - score above the threshold, unless stopped.
    given_up = 0
    for trace in traces:
        for boundary in trace.boundaries:
            if boundary.scores["probe"] > two.lam:
                break
            if boundary.position >= 120 and 1 - boundary.scores["probe"] > two.give_up:
                given_up += 1
                break
    assert given_up == two.n_given_up
    unknown = [replace(traces[0], full_correct=None), *traces[1:]]
    with pytest.raises(CalibrationError, match="1 full runs were not judged"):
        run(unknown, method="pac", give_up_alpha="0.1")


def test_each_side_can_only_lose_less_beside_the_other() -> None:
    population = simulate("wobble", 3000, seed=2)
    plan = Plan(alpha="0.1", delta="0.1", loss="consistency", scorer="s", method="pac", give_up_alpha="0.1")
    upper: Paths = paths_of(population.signals, Policy())
    lower = give_up_paths(plan, population.signals, population.right)
    rows = np.arange(3000)
    for lam in (0.5, 0.8):
        for give_up in (0.5, 0.9):
            ends, given_up = two_sided_stops(upper, lam, lower, give_up)
            stopped = (ends >= 0) & ~given_up
            alone = upper.stops(lam)
            assert not (stopped & upper.bad[rows, ends] & ~((alone >= 0) & upper.bad[rows, alone])).any()
            assert not (given_up & population.right & ~(lower.stops(give_up) >= 0)).any()


def test_what_the_judge_could_not_decide_is_lost_and_mostly_undecided_never_stops() -> None:
    judged = [replace(t, provenance={"judge": "math"}) for t in make_traces(300, 1)]

    def undecided(trace: Trace) -> Trace:
        return replace(trace, boundaries=tuple(replace(b, consistent=None) for b in trace.boundaries))

    few = run([undecided(t) for t in judged[:5]] + judged[5:])
    assert isinstance(few, Certificate)
    assert few.n_unjudged == sum(len(t.boundaries) for t in judged[:5])
    signals = build_signals([undecided(judged[0]), judged[1]], stored("probe"), "consistency")
    assert signals.bad[0, : len(judged[0].boundaries)].all()
    most = run([undecided(t) for t in judged[:200]] + judged[200:])
    assert isinstance(most, CannotCertify)
    assert most.reason == "unjudgeable"
    assert "shadow" in most.message
    with pytest.raises(CalibrationError, match="have no label"):
        run([undecided(t) for t in judged])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "pac", "loss": "token-regret"}, "not 0 or 1"),
        ({"method": "crc", "trace_score": "first-crossing"}, "never rises"),
        ({"method": "split", "give_up_alpha": 0.1}, "give_up_alpha"),
        ({"method": "pareto", "samples": "worst"}, "one sample"),
        ({"risks": {"consistency": 0.2}}, "repeat"),
        ({"risks": {"harm": 2}}, "strictly between"),
        ({"loss": "token-regret", "trace_score": "maximum"}, "losses of 0 or 1"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        run(make_traces(40, 1), **settings)


def test_a_floor_that_alpha_does_not_exceed_leaves_no_consistency_to_certify() -> None:
    traces = make_traces(400, seed=5)
    assert run(traces, alpha="0.2", floors={"resampled": 0.1999}).certified
    refused = run(traces, alpha="0.2", floors={"resampled": 0.2, "greedy": 0.3})
    assert isinstance(refused, CannotCertify)
    assert (refused.reason, refused.floor) == ("floor", ("greedy", 0.3))
    assert "floor 'greedy' is 0.3, not below alpha 0.2" in refused.message
    assert run(traces, alpha="0.2", loss="harm", floors={"resampled": 0.3}).certified


def test_a_trace_without_boundaries_counts() -> None:
    empty = [make_trace([], [], name=f"e{k}") for k in range(100)]
    found = run(make_traces(200, 1) + empty)
    assert isinstance(found, Certificate)
    assert found.n == 300
    assert build_paths(empty, Policy(), stored("probe"), "token-regret").n == 100
