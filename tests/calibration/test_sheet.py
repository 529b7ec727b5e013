"""Several levels from one gathering of the evidence: each is what a run at that level alone gives."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import Certificate
from desist.calibration.scorers import TraceScorer
from desist.calibration.sheet import operating_sheet
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_traces


def test_a_sheet_of_levels_holds_alone_and_together() -> None:
    settings = {"loss": "consistency", "forbidden_problems": (), "method": "pac"}
    sheet = operating_sheet(make_traces(400, 6), [0.2, 0.1, 0.05, 0.01], delta="0.1", **settings)
    assert [point.alpha for point in sheet.points] == [
        Fraction(1, 100),
        Fraction(1, 20),
        Fraction(1, 10),
        Fraction(1, 5),
    ]
    assert "delta/4 = 0.025" in sheet.note
    for point in sheet.points:
        assert point.together.delta == Fraction(1, 40)
        if isinstance(point.together, Certificate):
            assert isinstance(point.alone, Certificate)
            assert point.alone.lam <= point.together.lam
    assert isinstance(sheet.points[0].together, Certificate) or sheet.points[0].together.reason == "too_risky"
    assert len(sheet.as_rows()) == 8
    with pytest.raises(CalibrationError, match="each once"):
        operating_sheet(make_traces(4, 6), [0.1, "1/10"], delta="0.1", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ltt"},
        {"method": "ltt", "loss": "harm", "floors": {"resampled": 0.5}},
        {"method": "pac", "give_up_alpha": "0.05"},
        {"method": "pareto"},
        {"method": "crc", "loss": "token-regret"},
        {"method": "split", "samples": "worst"},
        {"method": "ltt", "risks": {"harm": "0.02"}, "patience": 2, "ema": 0.5},
        {"method": "weighted", "weights": "w"},
        {"method": "cue-level"},
        {"method": "ltt", "floors": {"resampled": 0.07}},
    ],
)
def test_every_level_of_a_sheet_is_what_a_run_at_that_level_alone_gives(settings: dict[str, Any]) -> None:
    base = make_traces(240, 6)
    traces = [replace(t, provenance={"w": 1.0 + (k % 3) / 10}) for k, t in enumerate(base)]
    settings = {"loss": "consistency", "forbidden_problems": (), "created": "2026-12-03", **settings}
    sheet = operating_sheet(traces, ["0.2", "0.05", "0.002"], delta="0.1", **settings)
    for point in sheet.points:
        for found, delta in ((point.alone, "1/10"), (point.together, "1/30")):
            assert found == calibrate(traces, alpha=point.alpha, delta=delta, **settings)
    assert len({type(point.alone) for point in sheet.points}) == (
        1 if settings["method"] == "cue-level" else 2
    )


def test_levels_after_the_first_read_no_trace_again() -> None:
    asked = []

    def score(trace: Trace) -> list[float | None]:
        asked.append(trace.trace_id)
        return [boundary.scores["probe"] for boundary in trace.boundaries]

    scorer = TraceScorer("probe", score)
    operating_sheet(
        make_traces(60, 6), [0.2, 0.1, 0.05], delta="0.1", loss="harm", forbidden_problems=(), scorer=scorer
    )
    assert len(asked) == 60
