"""Rivals and the table of their comparison with ours: typed rows, JSON and plain text.

Knows what a rival is (a scorer and a rule for its threshold) and what is reported of it; computes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from desist.calibration.accounting import PolicyRow, table_text
from desist.calibration.intervals import Interval
from desist.calibration.scorers import TraceScorer

__all__ = ["HOW", "Rival", "RivalRow", "RivalTable", "Rule"]

Rule = Literal["certified", "cue_level", "equal_loss", "equal_tokens", "fixed"]

HOW: dict[Rule, str] = {
    "certified": "certified for the same risk, same method",
    "cue_level": "split conformal over boundaries at the same alpha: no guarantee per trace",
    "equal_loss": "most saving on calibration at no more losses than ours",
    "equal_tokens": "matched to our tokens on calibration",
    "fixed": "nothing to calibrate",
}


@dataclass(frozen=True, slots=True)
class Rival:
    """A policy to compare with. `shaped`: uses our patience, warm-up and smoothing (else none)."""

    name: str
    scorer: TraceScorer
    rule: Rule
    lam: float = 0.0
    shaped: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class RivalRow:
    """One policy on the test traces, and against ours.

    `worse` / `better`: traces where it has the loss and ours has not / the reverse; `mcnemar_p` tests them.
    `saved_more`: its saved fraction minus ours with a paired bootstrap interval.
    `unavailable`: why it could not be compared (then `row` is None).
    """

    name: str
    how: str
    threshold: float | None
    row: PolicyRow | None
    calibration_losses: int | None = None
    worse: int | None = None
    better: int | None = None
    mcnemar_p: float | None = None
    saved_more: float | None = None
    saved_more_interval: Interval | None = None
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class RivalTable:
    """All rows, ours first."""

    plan: dict[str, Any]
    n_calibration: int
    n_test: int
    rows: tuple[RivalRow, ...]

    @property
    def unbeaten(self) -> tuple[str, ...]:
        """Certified rivals that saved at least as much as ours on the test traces."""
        return tuple(
            row.name
            for row in self.rows[1:]
            if row.how == HOW["certified"] and row.saved_more is not None and row.saved_more >= 0
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "unbeaten": list(self.unbeaten)}

    def text(self) -> str:
        """A plain table for people."""
        columns = ("policy", "saved", "risk", "low", "high", "acc", "lam", "worse", "better", "p", "how")
        lines = []
        for found in self.rows:
            risk = None
            if found.row is not None:
                consistency = self.plan["loss"] == "consistency"
                risk = found.row.consistency_risk if consistency else found.row.harm_risk
            lines.append(
                {
                    "policy": found.name,
                    "saved": found.row and found.row.saved_fraction,
                    "risk": risk and risk.value,
                    "low": risk and risk.low,
                    "high": risk and risk.high,
                    "acc": found.row and found.row.accuracy_stopped,
                    "lam": found.threshold,
                    "worse": found.worse,
                    "better": found.better,
                    "p": found.mcnemar_p,
                    "how": found.unavailable or found.how,
                }
            )
        return table_text(lines, columns)
