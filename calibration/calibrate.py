"""From scored, labelled traces and a plan to a certificate, or to the reason why there is none.

The plan is declared before looking: its method, shape and grid are arguments, and all are recorded. One
trace per problem, since the problem is what is exchangeable; problems seen in training are refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.choose import Choice, choose
from desist.calibration.decide import decide, gather, refusal, smallest_problems
from desist.calibration.intervals import clopper_pearson, mean_interval
from desist.calibration.losses import Loss, Truncated
from desist.calibration.pareto import SHAPES
from desist.calibration.paths import Missing, Paths, sweep
from desist.calibration.plan import Method, Plan, Samples, TraceScore
from desist.calibration.problems import one_per_problem, problem_hash, refuse_overlap
from desist.calibration.scorers import TraceScorer, stored
from desist.calibration.uncertified import Uncertified
from desist.calibration.weighted import effective_n
from desist.controller.core import AnswerMode, Policy
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind, Trace

__all__ = ["Choice", "calibrate", "certify", "choose", "one_per_problem", "problem_hash", "refuse_overlap"]

_LIBRARIES = ("desist", "mapie", "numpy", "scipy")


def certify(
    plan: Plan,
    traces: Sequence[Trace],
    *,
    scorer: TraceScorer | None = None,
    fingerprints: Mapping[str, str] | None = None,
    created: str = "",
    grid: NDArray[np.float64] | None = None,
    shapes: Sequence[Policy] = SHAPES,
    missing: Missing = "refuse",
    other_samples: int = 0,
    floors: Mapping[str, float] | None = None,
) -> Certificate | CannotCertify:
    """Certify `plan` on traces of distinct problems (with `samples` "worst": on all traces of each problem).

    `scorer`: default the stored score `plan.scorer`. `shapes`: those that "pareto" may choose from.
    `floors`: as for `calibrate`.
    """
    if grid is not None and (np.diff(grid) >= 0).any():
        raise CalibrationError("the grid must fall from its highest threshold. Sort it, safest first.")
    evidence = gather(plan, traces, scorer or stored(plan.scorer), missing)
    needed = smallest_problems(plan)
    if evidence.n < needed:
        return CannotCertify(**dict(plan), reason="too_few", n=evidence.n, needed_n=needed)
    too_high = [floor for floor in (floors or {}).items() if floor[1] >= plan.alpha]
    if plan.loss == "consistency" and too_high:
        highest = max(too_high, key=lambda floor: floor[1])
        return CannotCertify(**dict(plan), reason="floor", n=evidence.n, floor=highest)
    if 2 * evidence.signals[0].unjudged > evidence.boundaries > 0:
        return CannotCertify(**dict(plan), reason="unjudgeable", n=evidence.n)
    worth = None if evidence.weights is None else effective_n(evidence.weights)
    if worth is not None and evidence.weights is not None:
        heaviest = float(evidence.weights.max())
        most = heaviest if plan.max_weight is None else plan.max_weight
        plan = plan.model_copy(update={"max_weight": most})
        if most < heaviest:
            raise CalibrationError(
                f"max_weight is {most:.6g}, a calibration problem weighs {heaviest:.6g} (mean 1). "
                "Declare at least that."
            )
        strictest = min([plan.alpha, *(risk.alpha for risk in plan.risks)])
        least = (1 / strictest - 1) * max(evidence.n / worth, most)
        if evidence.n < least:
            needed = math.ceil(least)
            return CannotCertify(
                **dict(plan), reason="shift", n=evidence.n, needed_n=needed, n_effective=worth
            )
    decided = decide(plan, evidence, grid, shapes)
    paths, lam = decided.paths, decided.lam
    if plan.method == "cue-level":
        return _uncertified(plan, paths, lam)
    stops = paths.stops(lam)
    if lam is None or decided.lowest is None or not (stops >= 0).any():
        return refusal(decided)
    table = sweep(paths, np.asarray([lam]))
    if table.saved[0] <= 0:
        return refusal(decided)
    lost, n = int(table.losses[0]), paths.n
    interval = clopper_pearson(lost, n) if table.parts is None else mean_interval(float(table.risk[0]), n)
    kinds = tuple(sorted({boundary.kind for trace in evidence.seen for boundary in trace.boundaries}))
    return Certificate(
        **{**dict(decided.plan), "kinds": plan.kinds or kinds},
        lam=lam,
        n=n,
        n_bad=lost,
        n_stopped=int((stops >= 0).sum()),
        n_truncated=sum(trace.truncated for trace in traces),
        other_samples=other_samples,
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
        problems=tuple(sorted({problem_hash(trace) for trace in traces})),
        fingerprints=dict(fingerprints or {}),
        created=created,
        versions={name: found for name in _LIBRARIES if (found := _version(name))},
        text=decided.plan.statement(n, worth or 0.0),
    )


def calibrate(
    traces: Iterable[Trace],
    *,
    alpha: object,
    delta: object,
    loss: Loss,
    forbidden_problems: Collection[str],
    scorer: str | TraceScorer = "probe",
    method: Method = "ltt",
    patience: int = 1,
    warmup_tokens: int = 0,
    ema: float = 1.0,
    kinds: Collection[BoundaryKind] | None = None,
    answer_mode: AnswerMode = "write",
    judge: str = "math",
    truncated: Truncated = "answered",
    group: str | None = None,
    seed: int = 0,
    trace_score: TraceScore | None = None,
    samples: Samples = "one",
    risks: Mapping[Loss, object] | None = None,
    give_up_alpha: object = None,
    give_up_after: int = 0,
    group_by: str | None = None,
    n_groups: int = 1,
    delta_split: Literal["joint", "each"] | None = None,
    weights: str | None = None,
    max_weight: float | None = None,
    fingerprints: Mapping[str, str] | None = None,
    created: str = "",
    grid: NDArray[np.float64] | None = None,
    shapes: Sequence[Policy] = SHAPES,
    missing: Missing = "refuse",
    floors: Mapping[str, float] | None = None,
) -> Certificate | CannotCertify:
    """Calibrate a stop threshold with a guarantee per trace.

    With probability at least 1 - `delta` over the calibration problems, a new problem of the same kind is
    lost with probability at most `alpha`. `method` is to be declared before looking at the traces: "ltt" is
    the stronger one where answers wobble (right, wrong, right), "pac" covers every higher threshold as well;
    the others, and all further settings, as in `Plan`. `risks`: further losses, each with its own alpha.
    `forbidden_problems`: hashes of the problems the probe was trained on (empty: there were none).
    `created` is the date to write; the clock is the caller's. `grid` must not depend on these traces.
    `missing` "pass": boundaries without a score are passed over, as they are live, instead of refused.
    `floors`: how often two answers differ though nothing was stopped, by name; where one of them is not below
    alpha, losses of consistency say nothing of stopping, and there is no certificate for them.

    Raises CalibrationError: overlap with training, missing scores or labels, levels outside (0, 1).
    """
    trace_scorer = stored(scorer) if isinstance(scorer, str) else scorer
    fields = {
        "alpha": alpha,
        "delta": delta,
        "loss": loss,
        "scorer": trace_scorer.name,
        "method": method,
        "patience": patience,
        "warmup_tokens": warmup_tokens,
        "ema": ema,
        "kinds": tuple(sorted(kinds)) if kinds is not None else None,
        "answer_mode": answer_mode,
        "judge": judge,
        "truncated": truncated,
        "group": group,
        "seed": seed,
        "trace_score": trace_score,
        "samples": samples,
        "risks": tuple({"loss": name, "alpha": value} for name, value in (risks or {}).items()),
        "give_up_alpha": give_up_alpha,
        "give_up_after": give_up_after,
        "group_by": group_by,
        "n_groups": n_groups,
        "delta_split": delta_split,
        "weights": weights,
        "max_weight": max_weight,
    }
    try:
        plan = Plan.model_validate(fields)
    except ValidationError as failure:
        fault = failure.errors()[0]
        if not fault["loc"]:  # settings that do not fit together
            raise CalibrationError(str(fault["ctx"]["error"])) from failure
        raise CalibrationError(
            f"calibration setting {'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}."
        ) from failure
    everything = list(traces)
    kept, others = one_per_problem(everything, seed)
    if plan.samples == "worst":
        kept = sorted(everything, key=lambda trace: trace.trace_id)
    refuse_overlap(kept, forbidden_problems)
    return certify(
        plan,
        kept,
        scorer=trace_scorer,
        fingerprints=fingerprints,
        created=created,
        grid=grid,
        shapes=shapes,
        missing=missing,
        other_samples=others,
        floors=floors,
    )


def _uncertified(plan: Plan, paths: Paths, lam: float | None) -> Uncertified:
    table = sweep(paths, np.asarray([1.0 if lam is None else lam]))
    return Uncertified(
        **dict(plan),
        reason="no_guarantee",
        n=paths.n,
        n_bad=int(table.losses[0]),
        lam=lam,
        n_stopped=int(table.stopped[0]),
        risk=float(table.risk[0]),
        saved_fraction=float(table.saved[0]),
    )


def _lost(paths: Paths, stops: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray((stops >= 0) & paths.bad[np.arange(len(paths)), stops], dtype=np.float64)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
