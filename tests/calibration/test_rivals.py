from __future__ import annotations

import json
from dataclasses import replace

import pytest

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.rival_rows import Rival, RivalTable
from desist.calibration.rivals import compare_rivals
from desist.calibration.scorers import first_cue, fit_position, random_stop, stated_agreement, stored
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_trace, make_traces


def with_good(traces: list[Trace]) -> list[Trace]:
    """The same traces with a second stored score that is the label itself."""
    return [
        replace(
            trace,
            boundaries=tuple(
                replace(b, scores={**b.scores, "oracle": float(bool(b.consistent))}) for b in trace.boundaries
            ),
        )
        for trace in traces
    ]


@pytest.fixture(scope="module")
def table() -> RivalTable:
    learn, held = with_good(make_traces(400, 11, noise=2.0)), with_good(make_traces(400, 12, noise=2.0))
    found = calibrate(learn, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    assert isinstance(found, Certificate)
    return compare_rivals(found, learn, held, train=make_traces(200, 13))


def test_every_rival_has_a_row_on_the_same_traces(table: RivalTable) -> None:
    names = [row.name for row in table.rows]
    assert names[0] == "desist (probe)"
    for name in ("cue-level split conformal", "fixed budget", "random stop", "first cue", "position only"):
        assert name in names
    for name in (
        "same answer, forced",
        "same answer, read for free",
        "forced-answer confidence",
        "stored: oracle",
    ):
        assert name in names
    assert all(row.row is not None and row.row.n == 400 for row in table.rows)


def test_rivals_are_matched_or_certified_as_said(table: RivalTable) -> None:
    rows = {row.name: row for row in table.rows}
    ours = rows["desist (probe)"]
    assert ours.row is not None
    budget, blind, cue = rows["fixed budget"], rows["random stop"], rows["cue-level split conformal"]
    assert budget.calibration_losses is not None
    assert ours.calibration_losses is not None
    assert budget.calibration_losses <= ours.calibration_losses
    assert blind.row is not None
    assert blind.row.saved_fraction == pytest.approx(ours.row.saved_fraction, abs=0.05)
    assert cue.row is not None
    assert cue.row.consistency_risk is not None
    assert cue.row.consistency_risk.value > 0.1
    assert "no guarantee per trace" in cue.how
    certified = [
        row.row.consistency_risk for row in table.rows if row.row and row.how.startswith("certified")
    ]
    assert all(risk is not None and risk.low <= 0.1 for risk in certified)


def test_a_better_rival_is_named_and_paired_with_ours(table: RivalTable) -> None:
    assert "stored: oracle" in table.unbeaten
    oracle = next(row for row in table.rows if row.name == "stored: oracle")
    assert oracle.saved_more is not None
    assert oracle.saved_more_interval is not None
    assert oracle.saved_more_interval.low < oracle.saved_more < oracle.saved_more_interval.high
    assert (oracle.worse, oracle.row and oracle.row.inconsistent) == (0, 0)
    assert "stored: oracle" in table.text()
    json.dumps(table.as_json())


def test_R60_forced_answers_cost_what_they_cost(table: RivalTable) -> None:
    rows = {row.name: row.row for row in table.rows}
    paid, free = rows["same answer, forced"], rows["same answer, read for free"]
    assert paid is not None
    assert free is not None
    assert paid.saved_fraction < free.saved_fraction


def test_test_problems_must_be_new() -> None:
    learn = make_traces(60, 1)
    found = calibrate(learn, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    with pytest.raises(CalibrationError, match="1 problems were used in calibration"):
        compare_rivals(found, learn, [*make_traces(5, 2), learn[0]])


def test_without_a_certificate_ours_never_stops_and_missing_scores_are_said() -> None:
    learn = [make_trace([0.9, 0.2], [True, False], name=f"l{k}") for k in range(40)]
    held = [make_trace([0.9, 0.2], [True, False], name=f"t{k}") for k in range(40)]
    found = calibrate(learn, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    assert isinstance(found, CannotCertify)
    extra = Rival("absent", stored("absent"), "certified")
    table = compare_rivals(found, learn, held, rivals=[extra, Rival("cue", first_cue(), "fixed")])
    ours, absent, cue = table.rows
    assert (ours.threshold, ours.row and ours.row.n_stopped) == (None, 0)
    assert absent.row is None
    assert "have no score" in (absent.unavailable or "")
    assert cue.row is not None
    assert cue.row.inconsistent == 40


def test_a_rival_that_cannot_be_certified_costs_nothing() -> None:
    learn, held = make_traces(60, 1, noise=0.5), make_traces(60, 2, noise=0.5)
    found = calibrate(learn, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    table = compare_rivals(found, learn, held)
    refused = [row for row in table.rows if row.how.startswith("nothing that saves")]
    assert refused
    assert all(row.row is not None and row.row.saved_fraction == 0 for row in refused)


def test_R57_scorers_read_only_the_past() -> None:
    trace = make_traces(1, 5)[0]
    words = [f"step {k} so the answer is {k // 3}. wait " for k in range(len(trace.boundaries))]
    ends = [sum(map(len, words[: k + 1])) for k in range(len(words))]
    trace = replace(
        trace,
        reasoning="".join(words),
        boundaries=tuple(replace(b, char=end) for b, end in zip(trace.boundaries, ends, strict=True)),
    )
    position_probe = fit_position(make_traces(50, 1), "consistency")
    for scorer in (stated_agreement(), random_stop(3), position_probe):
        whole = list(scorer(trace))
        for cut in range(len(trace.boundaries)):
            part = replace(
                trace, reasoning=trace.reasoning[: ends[cut]], boundaries=trace.boundaries[: cut + 1]
            )
            assert list(scorer(part)) == pytest.approx(whole[: cut + 1])
    assert list(stated_agreement()(trace))[:4] == pytest.approx([0, 1 / 2, 2 / 3, 0][: len(words)])
