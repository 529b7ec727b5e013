"""From scored, labelled traces and a plan to a certificate, or to the reason why there is none.

The plan is declared before looking: its method, shape and grid are arguments, and all are recorded. One
trace per problem, since the problem is what is exchangeable; problems seen in training are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.choose import Choice, choose
from desist.calibration.group_keys import GroupRule
from desist.calibration.losses import Loss, Truncated
from desist.calibration.pareto import SHAPES
from desist.calibration.paths import Missing
from desist.calibration.plan import Method, Plan, Samples, TraceScore
from desist.calibration.prepared import Prepared, prepare
from desist.calibration.problems import one_per_problem, problem_hash, refuse_overlap
from desist.calibration.scorers import TraceScorer
from desist.controller.core import AnswerMode, Policy
from desist.data.schema import BoundaryKind, Trace

__all__ = ["Choice", "calibrate", "certify", "choose", "one_per_problem", "problem_hash", "refuse_overlap"]


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
    return Prepared.of(
        plan,
        traces,
        scorer=scorer,
        missing=missing,
        fingerprints=fingerprints,
        created=created,
        grid=grid,
        shapes=shapes,
        floors=floors,
        other_samples=other_samples,
    ).certify()


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
    group_rule: GroupRule | None = None,
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
    return prepare(
        traces,
        alpha=alpha,
        delta=delta,
        loss=loss,
        forbidden_problems=forbidden_problems,
        scorer=scorer,
        method=method,
        patience=patience,
        warmup_tokens=warmup_tokens,
        ema=ema,
        kinds=kinds,
        answer_mode=answer_mode,
        judge=judge,
        truncated=truncated,
        group=group,
        seed=seed,
        trace_score=trace_score,
        samples=samples,
        risks=risks,
        give_up_alpha=give_up_alpha,
        give_up_after=give_up_after,
        group_by=group_by,
        n_groups=n_groups,
        delta_split=delta_split,
        group_rule=group_rule,
        weights=weights,
        max_weight=max_weight,
        fingerprints=fingerprints,
        created=created,
        grid=grid,
        shapes=shapes,
        missing=missing,
        floors=floors,
    ).certify()
