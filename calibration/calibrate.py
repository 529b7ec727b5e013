"""From scored, labelled traces and a plan to a certificate, or to the reason why there is none.

The plan is declared before looking: its method, shape and grid are arguments, and all are recorded. One
trace per problem, since the problem is what is exchangeable; problems seen in training are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.critical import critical_scores
from desist.calibration.intervals import clopper_pearson
from desist.calibration.losses import Loss, Truncated
from desist.calibration.ltt import DEFAULT_GRID, accepted, default_grid
from desist.calibration.pac import needed_n, pac_threshold, smallest_n
from desist.calibration.paths import Missing, Paths, Sweep, build_paths, restrict, sweep
from desist.calibration.plan import Method, Plan
from desist.calibration.scorers import TraceScorer, stored
from desist.controller.core import AnswerMode
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind, Trace
from desist.data.splits import problem_id

__all__ = ["Choice", "calibrate", "certify", "choose", "one_per_problem", "problem_hash", "refuse_overlap"]

_LIBRARIES = ("desist", "mapie", "numpy", "scipy")


class Choice(NamedTuple):
    """The threshold chosen and the lowest one certified with it. None: cannot certify."""

    lam: float | None
    lowest: float | None = None


def problem_hash(trace: Trace) -> str:
    """Identity of the problem behind a trace: by its text where there is one, else its id."""
    return problem_id(trace.problem) if trace.problem.strip() else trace.problem_id


def one_per_problem(traces: Iterable[Trace], seed: int = 0) -> tuple[list[Trace], int]:
    """One trace of each problem, picked by hash (never by its content), and how many were left out."""
    chosen: dict[str, tuple[bytes, Trace]] = {}
    count = 0
    for trace in traces:
        count += 1
        rank = hashlib.sha256(f"{seed}:{trace.trace_id}".encode()).digest()
        key = problem_hash(trace)
        if key not in chosen or rank < chosen[key][0]:
            chosen[key] = (rank, trace)
    kept = [trace for _, trace in chosen.values()]
    return kept, count - len(kept)


def refuse_overlap(traces: Iterable[Trace], forbidden: Collection[str], what: str = "training") -> None:
    """Raise CalibrationError where a problem of `traces` is among the `forbidden` problem hashes."""
    known = frozenset(forbidden)
    seen = sorted({t.problem_id for t in traces if t.problem_id in known or problem_hash(t) in known})
    if seen:
        raise CalibrationError(
            f"{len(seen)} problems were used in {what} already, for example {', '.join(seen[:3])}. "
            "Calibrate on problems that the probe has never seen: the guarantee is void otherwise."
        )


def choose(plan: Plan, paths: Paths, grid: NDArray[np.float64] | None = None) -> Choice:
    """The certified threshold under `plan`, or none. Among certified ones: most tokens saved."""
    n = len(paths)
    if plan.method == "pac":
        lam = pac_threshold(critical_scores(paths), plan.alpha, plan.delta)
        return Choice(lam, lam)
    table = sweep(paths, default_grid() if grid is None else grid)
    valid = accepted(table.losses, n, plan.alpha, plan.delta)
    if len(valid) == 0:
        return Choice(None)
    best = valid[int(np.argmin(table.tokens[valid]))]  # the first minimum: the highest threshold of equals
    return Choice(float(table.grid[best]), float(table.grid[valid[-1]]))


def certify(
    plan: Plan,
    traces: Sequence[Trace],
    *,
    scorer: TraceScorer | None = None,
    fingerprints: Mapping[str, str] | None = None,
    created: str = "",
    grid: NDArray[np.float64] | None = None,
    missing: Missing = "refuse",
    other_samples: int = 0,
) -> Certificate | CannotCertify:
    """Certify `plan` on traces of distinct problems. `scorer`: default the stored score `plan.scorer`."""
    seen = [restrict(trace, plan.kinds) for trace in traces]
    scores = scorer or stored(plan.scorer)
    paths = build_paths(seen, plan.shape(), scores, plan.loss, plan.truncated, missing)
    n = len(paths)
    smallest = smallest_n(plan.alpha, plan.delta)
    if n < smallest:
        return CannotCertify(**dict(plan), reason="too_few", n=n, needed_n=smallest)
    if grid is not None and (np.diff(grid) >= 0).any():
        raise CalibrationError("the grid must fall from its highest threshold. Sort it, safest first.")
    choice = choose(plan, paths, grid)
    stops = paths.stops(choice.lam)
    stopped = stops >= 0
    if choice.lam is None or choice.lowest is None or not stopped.any():
        return _refusal(plan, paths, choice)
    table = sweep(paths, np.asarray([choice.lam]))
    if table.saved[0] <= 0:
        return _refusal(plan, paths, choice)
    lost = int(table.losses[0])
    interval = clopper_pearson(lost, n)
    kinds = tuple(sorted({boundary.kind for trace in seen for boundary in trace.boundaries}))
    return Certificate(
        **{**dict(plan), "kinds": plan.kinds or kinds},
        lam=choice.lam,
        n=n,
        n_bad=lost,
        n_stopped=int(stopped.sum()),
        n_truncated=sum(trace.truncated for trace in traces),
        other_samples=other_samples,
        risk=lost / n,
        risk_low=interval.low,
        risk_high=interval.high,
        saved_fraction=float(table.saved[0]),
        grid="continuous" if plan.method == "pac" else DEFAULT_GRID if grid is None else "given",
        grid_values=() if grid is None or plan.method == "pac" else tuple(grid.tolist()),
        lowest=choice.lowest,
        problems=tuple(sorted(problem_hash(trace) for trace in traces)),
        fingerprints=dict(fingerprints or {}),
        created=created,
        versions={name: found for name in _LIBRARIES if (found := _version(name))},
        text=plan.statement(n),
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
    truncated: Truncated = "no_answer",
    group: str | None = None,
    seed: int = 0,
    fingerprints: Mapping[str, str] | None = None,
    created: str = "",
    grid: NDArray[np.float64] | None = None,
    missing: Missing = "refuse",
) -> Certificate | CannotCertify:
    """Calibrate a stop threshold with a guarantee per trace.

    With probability at least 1 - `delta` over the calibration problems, a new problem of the same kind is
    lost with probability at most `alpha`. `method` is to be declared before looking at the traces: "ltt" is
    the stronger one where answers wobble (right, wrong, right), "pac" covers every higher threshold as well.
    `forbidden_problems`: hashes of the problems the probe was trained on (empty: there were none).
    `created` is the date to write; the clock is the caller's. `grid` must not depend on these traces.
    `missing` "pass": boundaries without a score are passed over, as they are live, instead of refused.

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
    }
    try:
        plan = Plan.model_validate(fields)
    except ValidationError as failure:
        fault = failure.errors()[0]
        raise CalibrationError(
            f"calibration setting {'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}."
        ) from failure
    kept, others = one_per_problem(traces, seed)
    refuse_overlap(kept, forbidden_problems)
    return certify(
        plan,
        kept,
        scorer=trace_scorer,
        fingerprints=fingerprints,
        created=created,
        grid=grid,
        missing=missing,
        other_samples=others,
    )


def _refusal(plan: Plan, paths: Paths, choice: Choice) -> CannotCertify:
    """Why nothing that stops was certified, from the most careful threshold that stops anything."""
    n = len(paths)
    table: Sweep = sweep(paths, default_grid())
    stopping = np.flatnonzero(table.stopped)
    if len(stopping) == 0:
        return CannotCertify(**dict(plan), reason="no_stops", n=n)
    careful = float(table.grid[stopping[0]])
    bad = int(table.losses[stopping[0]])
    if plan.method == "pac":  # the envelope, not the loss itself, is what has to be small
        bad = int((critical_scores(paths) > careful).sum())
    if choice.lowest is not None and choice.lowest <= careful:
        return CannotCertify(**dict(plan), reason="no_gain", n=n, n_bad=bad)
    needed = needed_n(bad / n, plan.alpha, plan.delta, above=n)
    return CannotCertify(**dict(plan), reason="too_risky", n=n, n_bad=bad, needed_n=needed)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
