"""One row per policy: accuracy, tokens saved net of everything generated, risks with exact intervals.

All figures can be recomputed from `Outcomes`; where an answer or a label is not known, the figures that
need it are None and the number of such traces is given, instead of a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from desist.calibration.intervals import Interval, clopper_pearson, excess_p, paired_share
from desist.calibration.losses import Loss
from desist.calibration.outcomes import Outcomes, oracle_outcomes
from desist.data.schema import Trace

__all__ = ["PolicyRow", "Share", "oracle_rows", "policy_row", "saved_fraction", "table_text"]


@dataclass(frozen=True, slots=True)
class Share:
    """A count out of n with its exact 95 % interval."""

    count: int
    n: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, n: int) -> Share:
        interval = clopper_pearson(count, n)
        return cls(count, n, count / n if n else 0.0, interval.low, interval.high)


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What one policy did on n traces.

    `saved_fraction`: 1 - all tokens generated / tokens of the full runs. `accuracy_loss`: full minus stopped
    accuracy with a paired bootstrap interval. `alpha_p`: exact one-sided p-value of "the risk named by
    `loss` is at most alpha"; small means it is not. `n_unknown`: stops whose answer is not known.
    """

    policy: str
    n: int
    n_stopped: int
    n_unknown: int
    saved_fraction: float
    tokens: int
    run_tokens: int
    accuracy_full: float | None
    accuracy_stopped: float | None
    accuracy_loss: float | None
    accuracy_loss_interval: Interval | None
    inconsistent: int | None
    lost: int | None
    gained: int | None
    consistency_risk: Share | None
    harm_risk: Share | None
    oracle_settled_fraction: float | None
    oracle_first_fraction: float | None
    loss: Loss | None = None
    alpha: float | None = None
    alpha_p: float | None = None
    threshold: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values for one JSON object."""
        return asdict(self)


def saved_fraction(outcomes: Outcomes) -> float:
    """1 - generated / full-run tokens, summed over traces."""
    return float(1 - outcomes.tokens.sum() / max(1, outcomes.run_tokens.sum()))


def oracle_rows(traces: Sequence[Trace]) -> tuple[float | None, float | None]:
    """Saved fractions of the two oracles (settled, first); None where consistency labels are missing."""
    labels = [boundary.consistent for trace in traces for boundary in trace.boundaries]
    if not labels or None in labels:
        return None, None
    settled = saved_fraction(oracle_outcomes(traces, settled=True))
    return settled, saved_fraction(oracle_outcomes(traces, settled=False))


def policy_row(
    policy: str,
    outcomes: Outcomes,
    *,
    oracles: tuple[float | None, float | None] = (None, None),
    loss: Loss | None = None,
    alpha: float | Fraction | None = None,
    threshold: float | None = None,
    note: str = "",
    seed: int = 0,
) -> PolicyRow:
    """The row of one policy. `oracles`: from `oracle_rows`; `alpha`: what `loss` is tested against."""
    n = len(outcomes)
    same = bool((outcomes.consistent >= 0).all())
    graded = bool((outcomes.full_correct >= 0).all() and (outcomes.stopped_correct >= 0).all())
    inconsistent = int((outcomes.consistent == 0).sum()) if same else None
    lost = int(outcomes.lost().sum()) if graded else None
    gained = int(outcomes.gained().sum()) if graded else None
    full = float(outcomes.full_correct.mean()) if n and (outcomes.full_correct >= 0).all() else None
    count = inconsistent if loss == "consistency" else lost if loss == "harm" else None
    limit = None if alpha is None else float(alpha)
    return PolicyRow(
        policy=policy,
        n=n,
        n_stopped=int(outcomes.stopped.sum()),
        n_unknown=int((outcomes.stopped & (outcomes.consistent < 0) & (outcomes.stopped_correct < 0)).sum()),
        saved_fraction=saved_fraction(outcomes),
        tokens=int(outcomes.tokens.sum()),
        run_tokens=int(outcomes.run_tokens.sum()),
        accuracy_full=full,
        accuracy_stopped=float(outcomes.stopped_correct.mean()) if n and graded else None,
        accuracy_loss=None if lost is None or gained is None or not n else (lost - gained) / n,
        accuracy_loss_interval=None
        if lost is None or gained is None
        else paired_share(lost, gained, n, seed),
        inconsistent=inconsistent,
        lost=lost,
        gained=gained,
        consistency_risk=None if inconsistent is None else Share.of(inconsistent, n),
        harm_risk=None if lost is None else Share.of(lost, n),
        oracle_settled_fraction=oracles[0],
        oracle_first_fraction=oracles[1],
        loss=loss,
        alpha=limit,
        alpha_p=None if count is None or limit is None else excess_p(count, n, limit),
        threshold=threshold,
        note=note,
    )


def table_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A plain aligned table of `columns`; unknown values show as "-"."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in [list(columns), *cells]) for place in range(len(columns))]
    lines = [columns, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"
    if isinstance(value, Mapping) and "value" in value:
        return _cell(value["value"])
    return str(value)
