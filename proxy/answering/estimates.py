"""How many tokens a stop probably saved: an estimate, because the rest of the trace was never run.

Knows a table of mean remaining reasoning tokens by position, taken from full calibration traces. Does not
know the request, its text or its difficulty.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol, Self

from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["ESTIMATE_BASIS", "EstimateTable", "StepTable"]

ESTIMATE_BASIS = (
    "estimate: mean reasoning tokens left at this position on calibration traces, less the tokens forced and "
    "rewound; the rest of this trace was never run"
)


class EstimateTable(Protocol):
    """Anything that can say how much reasoning was probably left."""

    def remaining_tokens(self, position: int) -> float | None:
        """Mean reasoning tokens left after `position` reasoning tokens; None where nothing is known."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """A step function: `remaining[i]` holds from `starts[i]` reasoning tokens up to the next start."""

    starts: tuple[int, ...]
    remaining: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.remaining) or list(self.starts) != sorted(set(self.starts)):
            raise CalibrationError(
                f"an estimate table needs rising starts and as many values, got {len(self.starts)} starts "
                f"and {len(self.remaining)} values. Build it with StepTable.from_traces."
            )

    def remaining_tokens(self, position: int) -> float | None:
        at = bisect.bisect_right(self.starts, position) - 1
        return self.remaining[at] if at >= 0 else None

    @classmethod
    def from_traces(cls, traces: Iterable[Trace], steps: int = 20) -> Self:
        """Means over all boundaries of full traces, in `steps` groups of equal size by position.

        Raises `CalibrationError` when no trace has a boundary.
        """
        pairs = sorted(
            (boundary.position, trace.n_reasoning_tokens - boundary.position)
            for trace in traces
            for boundary in trace.boundaries
        )
        if not pairs:
            raise CalibrationError("no trace has a boundary: an estimate needs traces from `desist collect`.")
        groups: dict[int, list[int]] = {}
        last = 0
        for rank, (position, left) in enumerate(pairs):
            if rank * steps // len(pairs) != (rank - 1) * steps // len(pairs) or rank == 0:
                last = position
            groups.setdefault(last, []).append(left)
        starts = sorted(groups)
        return cls(tuple(starts), tuple(fmean(groups[start]) for start in starts))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `{"starts": [...], "remaining": [...]}`. Raises `CalibrationError`."""
        try:
            values: Mapping[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))
            return cls(tuple(int(s) for s in values["starts"]), tuple(float(r) for r in values["remaining"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CalibrationError(
                f"{path} is no estimate table: {error}. Write one with StepTable.save."
            ) from error

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps({"starts": self.starts, "remaining": self.remaining}) + "\n", encoding="utf-8"
        )
