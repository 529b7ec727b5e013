"""Calibration traces made ready once, to be certified at one level or at several.

Scores, labels and costs become arrays here. They depend on all that the plan declares but its levels, so each
further alpha or delta costs a decision over arrays that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.decide import Evidence, decide, gather
from desist.calibration.intervals import clopper_pearson, mean_interval
from desist.calibration.losses import Loss
from desist.calibration.pareto import SHAPES
from desist.calibration.paths import Missing, Paths, sweep
from desist.calibration.plan import Plan
from desist.calibration.problems import one_per_problem, problem_hash, refuse_overlap
from desist.calibration.refusals import above_floor, refusal, too_few, too_uneven
from desist.calibration.scorers import TraceScorer, stored
from desist.calibration.uncertified import Uncertified
from desist.calibration.weighted import effective_n
from desist.controller.core import Policy
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind, Trace

__all__ = ["Prepared", "declare", "prepare"]

_LIBRARIES = ("desist", "mapie", "numpy", "scipy")


def prepare(
    traces: Iterable[Trace],
    *,
    forbidden_problems: Collection[str],
    scorer: str | TraceScorer = "probe",
    kinds: Collection[BoundaryKind] | None = None,
    risks: Mapping[Loss, object] | None = None,
    missing: Missing = "refuse",
    fingerprints: Mapping[str, str] | None = None,
    created: str = "",
    grid: NDArray[np.float64] | None = None,
    shapes: Sequence[Policy] = SHAPES,
    floors: Mapping[str, float] | None = None,
    **declared: object,
) -> Prepared:
    """The traces that count under a plan, as arrays; all settings, and what is raised, as in `calibrate`.

    One trace of each problem counts, or all of them where the plan takes the worst.
    """
    trace_scorer = stored(scorer) if isinstance(scorer, str) else scorer
    plan = declare(
        scorer=trace_scorer.name,
        kinds=tuple(sorted(kinds)) if kinds is not None else None,
        risks=tuple({"loss": name, "alpha": value} for name, value in (risks or {}).items()),
        **declared,
    )
    everything = list(traces)
    kept, others = one_per_problem(everything, plan.seed)
    if plan.samples == "worst":
        kept = sorted(everything, key=lambda trace: trace.trace_id)
    refuse_overlap(kept, forbidden_problems)
    return Prepared.of(
        plan,
        kept,
        scorer=trace_scorer,
        missing=missing,
        fingerprints=fingerprints,
        created=created,
        grid=grid,
        shapes=shapes,
        floors=floors,
        other_samples=others,
    )


def declare(**fields: object) -> Plan:
    """A plan from plain values. Raises CalibrationError naming the setting that is wrong."""
    try:
        return Plan.model_validate(fields)
    except ValidationError as failure:
        fault = failure.errors()[0]
        if not fault["loc"]:  # settings that do not fit together
            raise CalibrationError(str(fault["ctx"]["error"])) from failure
        raise CalibrationError(
            f"calibration setting {'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}."
        ) from failure


@dataclass(frozen=True, slots=True)
class Prepared:
    """`evidence`: of the problems that count; `problems`: their hashes; the rest as for `calibrate`."""

    plan: Plan
    evidence: Evidence
    problems: tuple[str, ...]
    n_truncated: int
    other_samples: int
    fingerprints: Mapping[str, str]
    created: str
    grid: NDArray[np.float64] | None
    shapes: Sequence[Policy]
    floors: Mapping[str, float]

    @classmethod
    def of(
        cls,
        plan: Plan,
        traces: Sequence[Trace],
        *,
        scorer: TraceScorer | None = None,
        missing: Missing = "refuse",
        fingerprints: Mapping[str, str] | None = None,
        created: str = "",
        grid: NDArray[np.float64] | None = None,
        shapes: Sequence[Policy] = SHAPES,
        floors: Mapping[str, float] | None = None,
        other_samples: int = 0,
    ) -> Prepared:
        """From traces of distinct problems (with `samples` "worst": all traces of each problem).

        `scorer`: default the stored score `plan.scorer`. `shapes`: those that "pareto" may choose from. The
        other settings as in `calibrate`.
        """
        if grid is not None and (np.diff(grid) >= 0).any():
            raise CalibrationError("the grid must fall from its highest threshold. Sort it, safest first.")
        return cls(
            plan,
            gather(plan, traces, scorer or stored(plan.scorer), missing),
            tuple(sorted({problem_hash(trace) for trace in traces})),
            sum(trace.truncated for trace in traces),
            other_samples,
            dict(fingerprints or {}),
            created,
            grid,
            shapes,
            dict(floors or {}),
        )

    def certify(self, alpha: object = None, delta: object = None) -> Certificate | CannotCertify:
        """The certificate of the plan, at other levels where they are given, or why there is none."""
        plan, evidence = self.plan, self.evidence
        if alpha is not None or delta is not None:
            asked = {"alpha": plan.alpha if alpha is None else alpha}
            asked["delta"] = plan.delta if delta is None else delta
            plan = declare(**{**dict(plan), **asked})
        refused = too_few(plan, evidence.n) or above_floor(plan, self.floors, evidence.n)
        if refused is not None:
            return refused
        if 2 * evidence.signals[0].unjudged > evidence.boundaries > 0:
            return CannotCertify(**dict(plan), reason="unjudgeable", n=evidence.n)
        worth = None
        if evidence.weights is not None:
            worth = effective_n(evidence.weights)
            plan = _with_heaviest(plan, evidence.weights)
            refused = too_uneven(plan, evidence.n, worth)
            if refused is not None:
                return refused
        decided = decide(plan, evidence, self.grid, self.shapes)
        paths, lam = decided.paths, decided.lam
        if plan.method == "cue-level":
            return Uncertified.of(plan, paths, lam)
        stops = paths.stops(lam)
        if lam is None or decided.lowest is None or not (stops >= 0).any():
            return refusal(decided, self.grid, evidence.weights)
        table = sweep(paths, np.asarray([lam]))
        if table.saved[0] <= 0:
            return refusal(decided, self.grid, evidence.weights)
        lost, n = int(table.losses[0]), paths.n
        interval = clopper_pearson(lost, n) if table.parts is None else mean_interval(float(table.risk[0]), n)
        kinds = tuple(sorted({boundary.kind for trace in evidence.seen for boundary in trace.boundaries}))
        return Certificate(
            **{**dict(decided.plan), "kinds": plan.kinds or kinds},
            lam=lam,
            n=n,
            n_bad=lost,
            n_stopped=int((stops >= 0).sum()),
            n_truncated=self.n_truncated,
            other_samples=self.other_samples,
            risk=float(table.risk[0]),
            risk_low=interval.low,
            risk_high=interval.high,
            saved_fraction=decided.saved,
            grid=decided.grid,
            grid_values=decided.grid_values,
            lowest=decided.lowest,
            n_unjudged=evidence.signals[0].unjudged,
            n_order=evidence.n - n,
            give_up=decided.give_up,
            n_given_up=decided.n_given_up,
            n_effective=worth,
            weighted_risk=None
            if evidence.weights is None
            else float(np.average(_lost(paths, stops), weights=evidence.weights)),
            problems=self.problems,
            fingerprints=dict(self.fingerprints),
            created=self.created,
            versions={name: found for name in _LIBRARIES if (found := _version(name))},
            text=decided.plan.statement(n, worth or 0.0),
        )


def _with_heaviest(plan: Plan, weights: NDArray[np.float64]) -> Plan:
    """The plan with its largest weight: the declared one, or that of the heaviest problem."""
    heaviest = float(weights.max())
    most = heaviest if plan.max_weight is None else plan.max_weight
    if most < heaviest:
        raise CalibrationError(
            f"max_weight is {most:.6g}, a calibration problem weighs {heaviest:.6g} (mean 1). "
            "Declare at least that."
        )
    return plan.model_copy(update={"max_weight": most})


def _lost(paths: Paths, stops: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray((stops >= 0) & paths.bad[np.arange(len(paths)), stops], dtype=np.float64)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
