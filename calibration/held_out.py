"""What the same plan does on problems outside calibration: by folds, by repeated splits, or on a file.

The certificate itself uses every problem. Its rehearsal here calibrates on a part and looks at the rest, so
that the risk shown is not the one that the threshold was chosen by. Knows arrays; writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from desist.calibration.certificate import Certificate
from desist.calibration.decide import Decided, Evidence, decide, gather
from desist.calibration.intervals import clopper_pearson, mean_interval
from desist.calibration.pareto import SHAPES
from desist.calibration.paths import Missing, Sweep, paths_of, sweep
from desist.calibration.plan import Plan
from desist.calibration.scorers import TraceScorer, stored
from desist.controller.core import Policy
from desist.data.schema import Trace

__all__ = ["HeldOut", "Splits", "cross_fitted", "on_traces", "part", "repeated_splits"]

_FOLDS = 5


class HeldOut(BaseModel):
    """Loss on `n` problems outside calibration, with its 95 % interval; `saved`: share of tokens, net.

    `how`: "folds" (each fifth of the problems under a threshold from the other four fifths) or "file" (other
    traces under the certificate itself).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    how: str
    n: int
    lost: int
    stopped: int
    risk: float
    low: float
    high: float
    saved: float


class Splits(BaseModel):
    """`risks`: loss on one half under a threshold calibrated on the other half of `n` problems, once a split.

    Splits where nothing could be certified are left out and counted in `refused`; `above`: risks over alpha.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int
    refused: int
    above: int
    risks: tuple[float, ...]


def part(evidence: Evidence, chosen: NDArray[np.bool_]) -> Evidence:
    """The evidence of some problems; `chosen`: [number of problems]."""
    if evidence.problem is None:
        rows, problem = np.flatnonzero(chosen), None
    else:
        rows = np.flatnonzero(chosen[evidence.problem])
        problem = np.unique(evidence.problem[rows], return_inverse=True)[1].astype(np.int64)
    seen = [evidence.seen[row] for row in rows]
    weights = None if evidence.weights is None else evidence.weights[rows]
    return Evidence(seen, tuple(signals.take(rows) for signals in evidence.signals), problem, weights)


def cross_fitted(
    plan: Plan,
    evidence: Evidence,
    *,
    grid: NDArray[np.float64] | None = None,
    shapes: Sequence[Policy] = SHAPES,
) -> HeldOut | None:
    """Each fifth of the problems under a threshold from the others; None where no fold can be certified.

    The interval takes the problems for independent, which folds make only nearly so.
    """
    place = _shuffled(evidence.n, plan.seed) % _FOLDS
    tables, certified = [], 0
    for fold in range(_FOLDS):
        decided = decide(plan, part(evidence, place != fold), grid, shapes)
        certified += decided.lam is not None
        tables.append(_apply(decided, part(evidence, place == fold)))
    return _pooled("folds", tables) if certified else None


def on_traces(
    found: Certificate,
    traces: Sequence[Trace],
    *,
    scorer: TraceScorer | None = None,
    missing: Missing = "refuse",
) -> HeldOut:
    """The certificate on traces of other problems."""
    evidence = gather(found, traces, scorer or stored(found.scorer), missing)
    paths = paths_of(evidence.signals[0], found.shape(), evidence.problem)
    return _pooled("file", [sweep(paths, np.asarray([found.lam]))])


def repeated_splits(
    plan: Plan,
    evidence: Evidence,
    repeats: int,
    *,
    grid: NDArray[np.float64] | None = None,
    shapes: Sequence[Policy] = SHAPES,
) -> Splits:
    """Calibrate on a random half, look at the other half, `repeats` times.

    The halves of different splits overlap and the second half is finite, so `above` is an illustration of the
    guarantee, not a test of it.
    """
    n = evidence.n // 2
    risks, refused = [], 0
    for repeat in range(repeats):
        first = _shuffled(evidence.n, plan.seed + 1 + repeat) < n
        decided = decide(plan, part(evidence, first), grid, shapes)
        if decided.lam is None:
            refused += 1
            continue
        risks.append(float(_apply(decided, part(evidence, ~first)).risk[0]))
    above = sum(risk > plan.alpha for risk in risks)
    return Splits(n=n, refused=refused, above=above, risks=tuple(risks))


def _shuffled(n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(n).astype(np.int64)


def _apply(decided: Decided, evidence: Evidence) -> Sweep:
    """What was decided, on other problems. A threshold of 1 stops nothing: scores are at most 1."""
    paths = paths_of(evidence.signals[0], decided.plan.shape(), evidence.problem)
    return sweep(paths, np.asarray([1.0 if decided.lam is None else decided.lam]))


def _pooled(how: str, tables: Sequence[Sweep]) -> HeldOut:
    n, lost = sum(table.n for table in tables), sum(int(table.losses[0]) for table in tables)
    risk = sum(float(table.risk[0]) * table.n for table in tables) / max(1, n)
    graded = any(table.parts is not None for table in tables)
    interval = mean_interval(risk, n) if graded else clopper_pearson(lost, n)
    tokens, run = sum(int(table.tokens[0]) for table in tables), sum(table.run_tokens for table in tables)
    return HeldOut(
        how=how,
        n=n,
        lost=lost,
        stopped=sum(int(table.stopped[0]) for table in tables),
        risk=risk,
        low=interval.low,
        high=interval.high,
        saved=1 - tokens / max(1, run),
    )
