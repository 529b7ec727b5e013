"""From paths and a plan to the threshold that the plan's method allows. Knows arrays, no traces.

Several risks at once: a threshold is allowed when it is for each risk. For the tests that is the largest of
the p-values (intersection-union: "some risk is too high" is rejected only when each is), for order
statistics the highest of the thresholds; both cost no part of delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from desist.calibration.crc import crc_last, envelope_parts
from desist.calibration.critical import critical_scores, maximum_scores
from desist.calibration.losses import PARTS
from desist.calibration.ltt import accepted_p, default_grid, p_values, share_p_values
from desist.calibration.pac import LOWEST, pac_threshold
from desist.calibration.paths import Paths, Steps, Sweep, steps, sweep
from desist.calibration.plan import Plan
from desist.calibration.split import conformal_quantile, cue_level_threshold
from desist.calibration.weighted import effective_n, weighted_thresholds

__all__ = ["Choice", "choose", "risk_p_values", "trace_scores"]


class Choice(NamedTuple):
    """The threshold chosen and the lowest one allowed with it. None: cannot certify."""

    lam: float | None
    lowest: float | None = None


def choose(
    plan: Plan,
    paths: Paths,
    grid: NDArray[np.float64] | None = None,
    others: Sequence[Paths] = (),
    weights: NDArray[np.float64] | None = None,
) -> Choice:
    """The allowed threshold under `plan`, or none. Among allowed ones: most tokens saved.

    `others`: the paths of `plan.risks`, in their order. `weights`: of the traces, for
    "weighted". "pareto" chooses a shape too: see `pareto`.
    """
    risks = [
        (paths, plan.alpha),
        *((other, risk.alpha) for other, risk in zip(others, plan.risks, strict=True)),
    ]
    if plan.method == "cue-level":
        return Choice(*[cue_level_threshold(paths, plan.alpha)] * 2)
    if plan.method == "pac":
        return _highest(
            pac_threshold(trace_scores(plan, each), alpha, plan.side_delta) for each, alpha in risks
        )
    if plan.method == "split":
        return _highest(_finite(conformal_quantile(trace_scores(plan, each), alpha)) for each, alpha in risks)
    if plan.method == "weighted":
        return _highest(_weighted(plan, trace_scores(plan, each), alpha, weights) for each, alpha in risks)
    grid = default_grid() if grid is None else grid
    found = steps(paths)
    if plan.method == "crc":
        last = min(_crc_last(plan, each, found, grid, alpha) for each, alpha in risks)
        return Choice(*[float(grid[last])] * 2) if last >= 0 else Choice(None)
    tables = [sweep(each, grid, found) for each, _ in risks]
    p = np.max(
        [
            risk_p_values(plan, each, table, found, alpha)
            for table, (each, alpha) in zip(tables, risks, strict=True)
        ],
        axis=0,
    )
    valid = accepted_p(p, plan.side_delta)
    if len(valid) == 0:
        return Choice(None)
    tokens = tables[0].tokens
    best = valid[int(np.argmin(tokens[valid]))]  # the first minimum: the highest threshold of equals
    return Choice(float(grid[best]), float(grid[valid[-1]]))


def trace_scores(plan: Plan, paths: Paths) -> NDArray[np.float64]:
    """The plan's score of each problem, [n]; -inf where no threshold leads to a bad stop."""
    scores = maximum_scores(paths) if plan.score_of_trace == "maximum" else critical_scores(paths)
    return paths.per_problem(scores)


def risk_p_values(
    plan: Plan, paths: Paths, table: Sweep, found: Steps, alpha: Fraction
) -> NDArray[np.float64]:
    """P-values of "the risk exceeds alpha" at each threshold of `table`, [g], for the plan's trace score."""
    n, delta, grid = table.n, plan.side_delta, table.grid
    if plan.score_of_trace == "first-crossing":
        if table.parts is not None:
            return share_p_values(table.parts, n, alpha, delta)
        return p_values(table.losses, n, alpha, delta)
    if table.parts is not None:
        return share_p_values(envelope_parts(paths, found, grid), n, alpha, delta)
    return p_values(_beyond(trace_scores(plan, paths), grid), n, alpha, delta)


def _beyond(scores: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores exceed each threshold, [g]."""
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), grid, side="right"), dtype=np.int64)


def _crc_last(plan: Plan, paths: Paths, found: Steps, grid: NDArray[np.float64], alpha: Fraction) -> int:
    if paths.parts is not None:
        return crc_last(envelope_parts(paths, found, grid), paths.n, alpha, PARTS)
    return crc_last(_beyond(trace_scores(plan, paths), grid), paths.n, alpha)


def _weighted(
    plan: Plan, scores: NDArray[np.float64], alpha: Fraction, weights: NDArray[np.float64] | None
) -> float | None:
    """One threshold for all: that of the heaviest prompt, since they rise with a prompt's weight."""
    if weights is None or not len(weights) or effective_n(weights) < math.ceil(1 / alpha) - 1:
        return None
    most = float(weights.max()) if plan.max_weight is None else plan.max_weight
    return _finite(weighted_thresholds(scores, weights, alpha).threshold(most))


def _finite(value: float) -> float | None:
    return None if math.isinf(value) and value > 0 else max(LOWEST, value)


def _highest(thresholds: Iterable[float | None]) -> Choice:
    found = list(thresholds)
    known = [lam for lam in found if lam is not None]
    return Choice(*[max(known)] * 2) if len(known) == len(found) else Choice(None)
