"""Why nothing was certified, of which risk, and how many problems would do. Knows arrays, no traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.cannot import CannotCertify, FailedRisk
from desist.calibration.choose import choose, trace_scores
from desist.calibration.decide import Decided
from desist.calibration.ltt import default_grid
from desist.calibration.pac import needed_n, smallest_n
from desist.calibration.pareto import ORDER_SHARE
from desist.calibration.paths import Paths, sweep
from desist.calibration.plan import Plan

__all__ = ["above_floor", "refusal", "smallest_problems", "too_few", "too_uneven"]


def smallest_problems(plan: Plan) -> int:
    """Fewest problems with which anything could be certified under `plan`, were there no loss at all."""
    return max(_fewest(plan, alpha) for _, alpha in _all_risks(plan))


def too_few(plan: Plan, n: int) -> CannotCertify | None:
    """The refusal of `n` problems that are too few whatever they show, naming the risks that need more."""
    needed = smallest_problems(plan)
    if n >= needed:
        return None
    least = [(name, alpha, _fewest(plan, alpha)) for name, alpha in _all_risks(plan)]
    failed = [FailedRisk(risk=name, alpha=alpha, needed_n=own) for name, alpha, own in least if n < own]
    return CannotCertify(**dict(plan), reason="too_few", n=n, needed_n=needed, failed=_several(plan, failed))


def above_floor(plan: Plan, floors: Mapping[str, float], n: int) -> CannotCertify | None:
    """The refusal of a consistency that the model does not keep with itself: a floor of alpha or more."""
    for loss, alpha in _risks(plan):
        too_high = [floor for floor in floors.items() if floor[1] >= alpha]
        if loss == "consistency" and too_high:
            highest = max(too_high, key=lambda floor: floor[1])
            failed = _several(plan, [FailedRisk(risk=loss, alpha=alpha)])
            return CannotCertify(**dict(plan), reason="floor", n=n, floor=highest, failed=failed)
    return None


def too_uneven(plan: Plan, n: int, worth: float) -> CannotCertify | None:
    """The refusal of `n` weighted problems worth too few equal ones, or too few beside a new problem."""
    loss, alpha = min(_risks(plan), key=lambda risk: risk[1])
    least = (1 / alpha - 1) * max(n / worth, plan.max_weight or 0.0)
    if n >= least:
        return None
    failed = _several(plan, [FailedRisk(risk=loss, alpha=alpha, needed_n=math.ceil(least))])
    return CannotCertify(
        **dict(plan),
        reason="shift",
        n=n,
        needed_n=math.ceil(least),
        n_effective=worth,
        failed=failed,
    )


def refusal(
    decided: Decided, grid: NDArray[np.float64] | None = None, weights: NDArray[np.float64] | None = None
) -> CannotCertify:
    """Why nothing that stops was certified, from the most careful threshold that stops anything.

    Of several risks those are named that allow no threshold that stops, each for itself: the others do not
    matter, since all together allow what each of them allows. ("pareto" may fail at another place of its
    order; then the risk is named that needs most problems.)
    """
    plan, n = decided.plan, decided.paths.n
    table = sweep(decided.paths, default_grid())
    stopping = np.flatnonzero(table.stopped)
    if len(stopping) == 0:
        return CannotCertify(**dict(plan), reason="no_stops", n=n)
    careful = float(table.grid[stopping[0]])
    found = [
        _at(_alone(plan, loss, alpha), paths, careful)
        for (loss, alpha), paths in zip(_risks(plan), (decided.paths, *decided.others), strict=True)
    ]
    if decided.lowest is not None and decided.lowest <= careful:
        return CannotCertify(**dict(plan), reason="no_gain", n=n, n_bad=found[0].n_bad)
    failed = [
        one
        for one, (loss, alpha), paths in zip(
            found, _risks(plan), (decided.paths, *decided.others), strict=True
        )
        if _fails(_alone(plan, loss, alpha), paths, careful, grid, weights)
    ] or [max(found, key=lambda one: one.needed_n or math.inf)]
    known = [one.needed_n for one in failed if one.needed_n is not None]
    needed = max(known) if len(known) == len(failed) else None
    worst = max(failed, key=lambda one: one.n_bad)
    return CannotCertify(
        **dict(plan),
        reason="too_risky",
        n=n,
        n_bad=worst.n_bad,
        needed_n=needed,
        failed=_several(plan, failed),
    )


def _risks(plan: Plan) -> Sequence[tuple[str, Fraction]]:
    return [(plan.loss, plan.alpha), *((risk.loss, risk.alpha) for risk in plan.risks)]


def _all_risks(plan: Plan) -> Sequence[tuple[str, Fraction]]:
    giving_up = [] if plan.give_up_alpha is None else [("giving up", plan.give_up_alpha)]
    return [*_risks(plan), *giving_up]


def _several(plan: Plan, failed: Sequence[FailedRisk]) -> tuple[FailedRisk, ...]:
    """A single risk needs no name: the plan's own loss and alpha say it."""
    return tuple(failed) if len(_all_risks(plan)) > 1 else ()


def _fewest(plan: Plan, alpha: Fraction) -> int:
    if plan.guarantee == "none":
        return 1
    if plan.guarantee == "mean":
        return math.ceil(1 / alpha) - 1
    least = smallest_n(alpha, plan.side_delta)
    return math.ceil(least / (1 - ORDER_SHARE)) if plan.method == "pareto" else least


def _alone(plan: Plan, loss: str, alpha: Fraction) -> Plan:
    """The plan for one of its risks; what "pareto" found is one shape, and its test is that of "ltt"."""
    method = "ltt" if plan.method == "pareto" else plan.method
    return plan.model_copy(update={"loss": loss, "alpha": alpha, "risks": (), "method": method})


def _at(plan: Plan, paths: Paths, careful: float) -> FailedRisk:
    table, n = sweep(paths, np.asarray([careful])), paths.n
    bad, rate = int(table.losses[0]), float(table.risk[0])
    if plan.score_of_trace != "first-crossing" and table.parts is None:
        # The trace score, not the loss itself, is what has to be small.
        bad = int((trace_scores(plan, paths) > careful).sum())
        rate = bad / n
    needed = needed_n(rate, plan.alpha, plan.side_delta, above=n)
    return FailedRisk(risk=plan.loss, alpha=plan.alpha, n_bad=bad, needed_n=needed)


def _fails(
    plan: Plan,
    paths: Paths,
    careful: float,
    grid: NDArray[np.float64] | None,
    weights: NDArray[np.float64] | None,
) -> bool:
    lowest = choose(plan, paths, grid, weights=weights).lowest
    return lowest is None or lowest > careful
