"""A refusal names the risk that failed, with its own alpha and its own needed n."""

from __future__ import annotations

from dataclasses import replace

import pytest

from desist.calibration.calibrate import calibrate
from desist.calibration.cannot import CannotCertify
from desist.calibration.certificate import Certificate
from desist.calibration.exact import exact
from desist.data.schema import Trace
from tests.fakes.traces import make_traces


def run(traces: list[Trace], **settings: object) -> Certificate | CannotCertify:
    base = {"alpha": "0.1", "delta": "0.1", "loss": "consistency", "forbidden_problems": ()}
    return calibrate(traces, **{**base, **settings})  # type: ignore[arg-type]


def refused(traces: list[Trace], **settings: object) -> CannotCertify:
    found = run(traces, **settings)
    assert isinstance(found, CannotCertify)
    return found


def test_too_few_problems_for_one_of_the_risks() -> None:
    found = refused(make_traces(100, 3), delta="0.05", risks={"harm": "0.01"})
    assert found.message == ("cannot certify, need n >= 299 problems, have 100 (harm at most 1 % needs 299)")
    assert [(one.risk, one.alpha, one.needed_n) for one in found.failed] == [("harm", exact("0.01"), 299)]
    found = refused(make_traces(20, 3), delta="0.05", give_up_alpha="0.02")
    assert "(consistency at most 10 % needs 36, giving up at most 2 % needs 183)" in found.message
    assert refused(make_traces(20, 3), delta="0.05").message == (
        "cannot certify, need n >= 29 problems, have 20"
    )


@pytest.mark.parametrize("method", ["ltt", "pac", "split", "crc"])
@pytest.mark.parametrize(
    ("alpha", "harm", "failing"),
    [
        ("0.9", "0.02", {"harm"}),
        ("0.02", "0.9", {"consistency"}),
        ("0.02", "0.02", {"consistency", "harm"}),
    ],
)
def test_the_risks_named_are_those_that_fail_alone(
    method: str, alpha: str, harm: str, failing: set[str]
) -> None:
    """Scores without meaning: a risk far below the rate of bad answers can never be held."""
    traces = make_traces(300, 7, noise=40.0, right_at_first=0.3, mend_rate=0.1)
    found = refused(traces, alpha=alpha, method=method, risks={"harm": harm})
    assert {one.risk for one in found.failed} == failing
    alone = {"consistency": run(traces, alpha=alpha, method=method)}
    alone["harm"] = run(traces, alpha=harm, method=method, loss="harm")
    for name, single in alone.items():
        assert isinstance(single, CannotCertify) == (name in failing)
    for one in found.failed:
        single = alone[one.risk]
        assert isinstance(single, CannotCertify)
        assert (one.alpha, one.n_bad, one.needed_n) == (single.alpha, single.n_bad, single.needed_n)
        assert f"cannot certify {one.risk} at most 2 %: {one.n_bad} of 300 problems lost" in found.message


def test_pareto_names_it_too() -> None:
    traces = make_traces(300, 7, noise=40.0, right_at_first=0.3, mend_rate=0.1)
    found = refused(traces, alpha="0.9", method="pareto", risks={"harm": "0.02"})
    assert [one.risk for one in found.failed] == ["harm"]


def test_a_single_risk_is_named_by_the_plan_itself() -> None:
    found = refused(make_traces(300, 7, noise=40.0, right_at_first=0.3, mend_rate=0.1), alpha="0.02")
    assert (found.reason, found.failed) == ("too_risky", ())
    assert found.message.startswith(f"cannot certify: {found.n_bad} of 300 problems lost")


def test_a_floor_is_held_against_the_consistency_among_several_risks() -> None:
    found = refused(make_traces(300, 3), loss="harm", risks={"consistency": "0.2"}, floors={"resampled": 0.2})
    assert (found.reason, found.floor, found.failed[0].alpha) == ("floor", ("resampled", 0.2), exact("0.2"))
    assert "the floor 'resampled' is 0.2, not below alpha 0.2" in found.message
    assert run(
        make_traces(300, 3), loss="harm", risks={"consistency": "0.2"}, floors={"resampled": 0.19}
    ).certified


def test_an_uneven_weight_names_the_strictest_risk() -> None:
    traces = [
        replace(trace, provenance={"w": 9.0 if k == 0 else 1.0})
        for k, trace in enumerate(make_traces(120, 3))
    ]
    found = refused(traces, alpha="0.2", method="weighted", weights="w", risks={"harm": "0.05"})
    assert found.reason == "shift"
    assert "too few for harm at most 5 %" in found.message
