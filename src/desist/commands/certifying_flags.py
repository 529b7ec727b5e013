"""What `calibrate` and `report` make of their flags: weights, further risks, floors, sheets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from desist.commands.common import today

if TYPE_CHECKING:
    from desist.calibration import CannotCertify, Certificate
    from desist.calibration.sheet import Sheet
    from desist.data.schema import Trace

__all__ = [
    "GroupBy", "Joint", "LengthEdges", "MinGroup", "SmallGroups", "expiring", "floor_shares", "read",
    "risk_levels", "save_sheet", "weighted_traces",
]  # fmt: skip

GroupBy = Annotated[
    str | None,
    typer.Option(
        "--group-by",
        help="A certificate a group: model, dataset, prompt-length, language, group; several: product.",
    ),
]
MinGroup = Annotated[
    int | None,
    typer.Option(
        "--min-group", min=1, help="Fewest problems of a group [what alpha and its delta need, no fewer]."
    ),
]
Joint = Annotated[
    bool | None,
    typer.Option(
        "--joint/--each",
        help="Groups' statements hold together (delta is divided by the groups that are calibrated), or one "
        "at a time [joint where the method has a delta].",
    ),
]
SmallGroups = Annotated[
    Literal["shadow", "rest"] | None,
    typer.Option("--small-groups", help="Never stop, or be one group together [shadow]."),
]
LengthEdges = Annotated[
    str | None,
    typer.Option(
        "--length-edges",
        help="Where longer bands of prompt-length begin [128,512 tokens; 400,2000 characters where traces "
        "have no provenance.prompt_tokens].",
    ),
]


def read(path: Path) -> Sequence[Trace]:
    from desist.data import read_traces

    return list(read_traces(path))


def weighted_traces(
    traces: Sequence[Trace],
    method: str,
    shift: Path | None,
    weights: str | None,
    seed: int,
    stored: dict[str, str],
) -> tuple[Sequence[Trace], str | None]:
    """The traces with their weights, and the key that holds them; a later traffic leaves its fingerprint."""
    from desist.calibration.shift import WEIGHT, shift_weights, traffic_print

    if method != "weighted":
        if shift is not None or weights is not None:
            raise typer.BadParameter("--shift and --weights go with --method weighted.")
        return traces, None
    if shift is None:
        if weights is None:
            raise typer.BadParameter("--method weighted needs --shift LATER.jsonl, or --weights KEY.")
        return traces, weights
    if weights not in (None, WEIGHT):
        raise typer.BadParameter("give --shift or --weights, not both.")
    later = read(shift)
    stored["traffic"] = traffic_print(later)
    return shift_weights(traces, later, seed), WEIGHT


def risk_levels(given: Sequence[str] | None) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or name in found:
            raise typer.BadParameter(f"--risk is {text!r}; give LOSS=ALPHA, each loss once: harm=0.02.")
        found[name] = value
    return found


def floor_shares(given: Sequence[str] | None) -> dict[str, float]:
    found = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"--floor is {text!r}; give name=share, for example resampled=0.03."
            ) from None
        if not name or not 0 <= found[name] <= 1:
            raise typer.BadParameter(f"--floor is {text!r}; give a name and a share in [0, 1].")
    return found


def expiring(found: Certificate | CannotCertify, days: int) -> Certificate | CannotCertify:
    from desist.calibration.certificate import Certificate

    if not isinstance(found, Certificate) or not days:
        return found
    until = date.fromisoformat(today()) + timedelta(days=days)
    return found.model_copy(update={"expires": until.isoformat()})


def save_sheet(sheet: Sheet, out: Path, days: int) -> dict[str, Any]:
    """The operating points for the JSON; the certificates are written, one for each level and statement."""
    from desist.calibration.certificate import Certificate
    from desist.calibration.exact import exact_text

    written = []
    for point in sheet.points:
        for holds, one in (("alone", point.alone), ("together", point.together)):
            made = expiring(one, days)
            place = out / f"certificate-{exact_text(point.alpha).replace('/', '_')}-{holds}.json"
            written.append(str(made.save(place)) if isinstance(made, Certificate) else None)
    rows = [{**row, "certificate": path} for row, path in zip(sheet.as_rows(), written, strict=True)]
    return {
        "operating_points": rows, "delta_together": exact_text(sheet.delta_together), "note": sheet.note
    }  # fmt: skip
