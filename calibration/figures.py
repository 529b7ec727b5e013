"""All figures of one operating point, as plain numbers: what a report shows, kept as JSON beside it.

Computed once from the calibration traces; a report can be drawn again without them. Knows no drawing and
no words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from desist.calibration.accounting import Share
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.curves import Curves, curves_of
from desist.calibration.decide import Evidence, decide, gather
from desist.calibration.direction import Direction, direction
from desist.calibration.exact import Level
from desist.calibration.held_out import HeldOut, Splits, cross_fitted, on_traces, repeated_splits
from desist.calibration.intervals import Interval, ratio_difference
from desist.calibration.pareto import SHAPES
from desist.calibration.paths import Missing, Paths, paths_of, sweep
from desist.calibration.plan import Plan
from desist.calibration.problems import one_per_problem
from desist.calibration.reliability import Reliability as Probability
from desist.calibration.reliability import score_reliability
from desist.calibration.scorers import HALF_TOKENS, TraceScorer, stored
from desist.calibration.sets import one_boundary_each
from desist.calibration.stops import (
    GroupRow,
    Reliability,
    WorstLoss,
    first_stops,
    group_rows,
    lost_at,
    reliability,
    tokens_at,
    worst_losses,
)
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["ALPHAS", "BudgetRow", "Figures", "Point", "calibration_figures", "load_figures"]

ALPHAS = ("0.01", "0.02", "0.05", "0.1", "0.2")
"""Levels at which a report shows what could be had."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Point(_Frozen):
    """What the same plan gives at another alpha: with all of delta, and with delta/K (`safe_*`).

    Each point holds alone; who looks at all K and then chooses needs the second.
    """

    alpha: Level
    lam: float | None
    risk: float | None = None
    saved: float | None = None
    safe_lam: float | None = None
    safe_saved: float | None = None


class BudgetRow(_Frozen):
    """A fixed thinking budget that loses at most as many calibration problems as the policy does."""

    budget: int
    stopped: Share
    lost: Share
    saved: float
    saved_interval: Interval


class Figures(_Frozen):
    """One operating point on its calibration traces.

    `stopped`, `lost`: traces at the threshold; `saved_interval`: bootstrap over traces; `run_tokens`: mean
    tokens of a full run, `stop_tokens`: mean tokens generated from a stop on (hand-off and answer).
    `floors`: how often the model disagrees with itself, by name. `command`: what made this.
    `probability`: are scores probabilities, on one boundary of each trace.
    `small_groups`: groups beside this one that were not calibrated, told once, with the first one that was.
    `direction`: is the score higher where a stop is good (None in figures of an earlier release).
    """

    certified: Certificate | CannotCertify
    curves: Curves
    n_traces: int
    stopped: Share
    lost: Share
    saved: float
    saved_interval: Interval
    run_tokens: float
    stop_tokens: float
    budget: BudgetRow | None
    held_out: HeldOut | None
    splits: Splits | None
    points: tuple[Point, ...]
    first_stops: tuple[int, ...]
    reliability: Reliability
    direction: Direction | None = None
    probability: Probability | None = None
    groups: tuple[GroupRow, ...]
    worst: tuple[WorstLoss, ...]
    floors: Mapping[str, float] = Field(default_factory=dict)
    tokens_per_second: float | None = None
    audit_share: float = 0.0
    command: str = ""
    small_groups: tuple[CannotCertify, ...] = ()


def calibration_figures(
    certified: Certificate | CannotCertify,
    traces: Sequence[Trace],
    *,
    test: Sequence[Trace] = (),
    scorer: TraceScorer | None = None,
    missing: Missing = "refuse",
    floors: Mapping[str, float] | None = None,
    tokens_per_second: float | None = None,
    audit_share: float = 0.0,
    texts: bool = False,
    command: str = "",
    alphas: Sequence[object] = (),
    evidence: Evidence | None = None,
) -> Figures:
    """The figures of `certified` on the traces that it was calibrated on.

    `test`: traces of other problems, for the held-out loss (default: five folds). `texts`: whether the worst
    losses are shown with their answers. `audit_share`: share of requests that run in full AND branch.
    `alphas`: levels of the operating points (default: ALPHAS). `evidence`: that of the traces, where it was
    gathered already.
    """
    plan = Plan(**{name: getattr(certified, name) for name in Plan.model_fields})
    if evidence is None:
        kept, _ = one_per_problem(traces, certified.seed)
        if certified.samples == "worst":
            kept = sorted(traces, key=lambda trace: trace.trace_id)
        evidence = gather(plan, kept, scorer or stored(certified.scorer), missing)
    paths = paths_of(evidence.signals[0], certified.shape(), evidence.problem)
    lam = certified.lam if isinstance(certified, Certificate) else None
    stops = paths.stops(lam)
    lost, tokens = lost_at(paths, stops), tokens_at(paths, stops)
    if lam is None:  # a policy that never stops is not run: then its probes cost nothing either
        tokens = paths.run_tokens
    held = None
    if isinstance(certified, Certificate):
        held = (
            on_traces(certified, test, scorer=scorer, missing=missing)
            if test
            else cross_fitted(plan, evidence)
        )
    return Figures(
        certified=certified,
        curves=curves_of(certified, evidence, paths),
        n_traces=len(paths),
        stopped=Share.of(int((stops >= 0).sum()), len(paths)),
        lost=Share.of(int(lost.sum()), len(paths)),
        saved=float(1 - tokens.sum() / max(1, paths.run_tokens.sum())),
        saved_interval=ratio_difference(paths.run_tokens, tokens, paths.run_tokens, plan.seed),
        run_tokens=float(paths.run_tokens.mean()) if len(paths) else 0.0,
        stop_tokens=_after(evidence, paths, stops),
        budget=None if lam is None else _equal_budget(plan, evidence, int(lost.sum())),
        held_out=held,
        splits=repeated_splits(plan, evidence, _repeats(evidence.n)) if evidence.n > 1 else None,
        points=_points(plan, evidence, alphas or ALPHAS),
        first_stops=first_stops(evidence, stops),
        reliability=reliability(paths),
        direction=direction(paths),
        probability=_probability(evidence, plan.seed),
        groups=group_rows(evidence, paths, stops, _group_names(evidence.seen)),
        worst=worst_losses(evidence, paths, stops, texts=texts),
        floors=dict(floors or {}),
        tokens_per_second=tokens_per_second,
        audit_share=audit_share,
        command=command,
    )


def _probability(evidence: Evidence, seed: int) -> Probability | None:
    own = evidence.signals[0]
    if own.scores.shape[1] == 0:
        return None
    scores, bad = one_boundary_each(own, seed)
    return score_reliability(scores, ~bad) if len(scores) > 1 else None


def _repeats(n: int) -> int:
    return max(20, min(100, 100_000 // max(1, n)))


def _after(evidence: Evidence, paths: Paths, stops: NDArray[np.int64]) -> float:
    rows = np.flatnonzero(stops >= 0)
    if not len(rows):
        return 0.0
    kept = [evidence.seen[row].boundaries[stops[row]].position for row in rows]
    return float((paths.tokens[rows, stops[rows]] - np.asarray(kept)).mean())


def _group_names(traces: Sequence[Trace]) -> list[str | None]:
    """The groups of the traces, where there are several; else their datasets."""
    groups = [trace.group for trace in traces]
    return groups if len(set(groups)) > 1 else [trace.dataset for trace in traces]


def _points(plan: Plan, evidence: Evidence, alphas: Sequence[object]) -> tuple[Point, ...]:
    found = []
    for alpha in alphas:
        values: list[tuple[float | None, float | None, float | None]] = []
        for delta in (plan.delta, plan.delta / len(alphas)):
            asked = Plan.model_validate({**dict(plan), "alpha": alpha, "delta": delta})
            decided = decide(asked, evidence, None, SHAPES)
            if decided.lam is None or decided.saved <= 0:
                values.append((None, None, None))
                continue
            risk = float(sweep(decided.paths, np.asarray([decided.lam])).risk[0])
            values.append((decided.lam, risk, decided.saved))
        (lam, risk_here, saved), (safe, _, safe_saved) = values
        found.append(
            Point.model_validate(
                {"alpha": alpha, "lam": lam, "risk": risk_here, "saved": saved}
                | {"safe_lam": safe, "safe_saved": safe_saved}
            )
        )
    return tuple(found)


def _equal_budget(plan: Plan, evidence: Evidence, lost: int) -> BudgetRow | None:
    """The budget that saves most at no more losses, taken at the next boundary, never inside a hold-off."""
    own = evidence.signals[0]
    there = np.arange(own.positions.shape[1])[None, :] < np.asarray(
        [[len(trace.boundaries)] for trace in evidence.seen]
    )
    scores = np.where(there, own.positions / (own.positions + HALF_TOKENS), np.nan)
    bare = Plan.model_validate({**dict(plan), "patience": 1, "warmup_tokens": 0, "ema": 1.0})
    # No scorer runs: what its probes cost is not charged.
    signals = replace(own, scores=scores, full_tokens=own.run_tokens)
    paths = paths_of(signals, bare.shape(), evidence.problem)
    reach = np.unique(own.positions[there])
    chosen = np.unique(np.quantile(reach, np.linspace(0, 1, 500), method="lower")) if len(reach) else reach
    grid = (chosen / (chosen + HALF_TOKENS))[::-1]
    table = sweep(paths, grid)
    allowed = np.flatnonzero(table.losses <= lost)
    if not len(allowed):
        return None
    best = allowed[int(np.argmin(table.tokens[allowed]))]
    stops = paths.stops(float(grid[best]))
    tokens = tokens_at(paths, stops)
    return BudgetRow(
        budget=int(chosen[::-1][best]),
        stopped=Share.of(int((stops >= 0).sum()), len(paths)),
        lost=Share.of(int(lost_at(paths, stops).sum()), len(paths)),
        saved=float(1 - tokens.sum() / max(1, paths.run_tokens.sum())),
        saved_interval=ratio_difference(paths.run_tokens, tokens, paths.run_tokens, plan.seed),
    )


def load_figures(path: str | os.PathLike[str]) -> tuple[Figures, ...]:
    """The figures of a `report.json`. Raises CalibrationError."""
    try:
        return _FILE.validate_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"{path} holds no figures: {error}. Make it again with `desist report`."
        ) from error


_FILE: TypeAdapter[tuple[Figures, ...]] = TypeAdapter(tuple[Figures, ...])
