"""Learn then Test over threshold and shape: the order of the tests is learned on a part of the problems.

With several knobs there is no order from safe to risky known beforehand. So a part of the problems (by
seed, never by content) orders the pairs of shape and threshold: those on the front of "fewer losses" and
"fewer tokens", safest first. The other problems test them in this order until the first failure; that part
alone is what the certificate counts. Laufer-Goldshtein et al. (2023), "Efficiently controlling multiple
risks with Pareto testing". Knows arrays, no traces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from desist.calibration.choose import risk_p_values
from desist.calibration.ltt import accepted_p, default_grid
from desist.calibration.paths import Paths, steps, sweep
from desist.calibration.plan import Plan
from desist.controller.core import Policy

__all__ = ["ORDER_SHARE", "SHAPES", "ParetoChoice", "choose_pareto", "order_part"]

ORDER_SHARE = Fraction(3, 10)
"""Share of the problems that only order the tests."""

SHAPES: tuple[Policy, ...] = tuple(
    Policy(patience=patience, warmup_tokens=warmup, ema=ema)
    for patience, warmup, ema in product((1, 2, 3), (0, 256), (1.0, 0.5))
)
"""The shapes that are tried where none are given. Fixed beforehand: they depend on no data."""


@dataclass(frozen=True, slots=True)
class ParetoChoice:
    """The shape and threshold chosen (`lam` None: none), and the thresholds accepted for that shape.

    `paths`: those of the problems that tested, under that shape (the safest one's where `lam` is None);
    `others`: the same for the plan's further risks.
    """

    plan: Plan
    paths: Paths
    lam: float | None
    accepted: tuple[float, ...] = ()
    others: tuple[Paths, ...] = ()


def order_part(problems: Iterable[str], seed: int) -> NDArray[np.bool_]:
    """Whether each problem is in the part that orders, [n]: by hash, so their order does not matter."""
    limit = int(ORDER_SHARE * 2**64)
    digests = (hashlib.sha256(f"order:{seed}:{problem}".encode()).digest() for problem in problems)
    return np.asarray([int.from_bytes(digest[:8], "big") < limit for digest in digests], dtype=np.bool_)


def choose_pareto(
    plan: Plan,
    shapes: Mapping[Policy, Sequence[Paths]],
    orders: NDArray[np.bool_],
    grid: NDArray[np.float64] | None = None,
) -> ParetoChoice:
    """`shapes`: the paths of all problems under each shape, for the plan's loss and each of its `risks`.

    `orders` [n]: which problems only order the tests, see `order_part`.
    """
    grid = default_grid() if grid is None else grid
    learn, test = np.flatnonzero(orders), np.flatnonzero(~orders)
    tables = [_p_and_tokens(plan, [one.take(learn) for one in several], grid) for several in shapes.values()]
    order = _front(np.stack([p for p, _ in tables]), np.stack([tokens for _, tokens in tables]))
    p, tokens = np.full(len(order), np.nan), np.zeros(len(order), dtype=np.int64)
    for number, several in enumerate(shapes.values()):
        mine = np.flatnonzero(order[:, 0] == number)
        if len(mine):
            falling = mine[np.argsort(order[mine, 1], kind="stable")]
            tested = [one.take(test) for one in several]
            p[falling], tokens[falling] = _p_and_tokens(plan, tested, grid[order[falling, 1]])
    valid = accepted_p(p, plan.side_delta)
    best = valid[int(np.argmin(tokens[valid]))] if len(valid) else 0
    number = int(order[best, 0])
    shape, several = list(shapes.items())[number]
    kept = grid[order[valid[order[valid, 0] == number], 1]]
    return ParetoChoice(
        _shaped(plan, shape),
        several[0].take(test),
        float(grid[order[best, 1]]) if len(valid) else None,
        tuple(sorted(kept.tolist(), reverse=True)),
        tuple(one.take(test) for one in several[1:]),
    )


def _shaped(plan: Plan, shape: Policy) -> Plan:
    found = {"patience": shape.patience, "warmup_tokens": shape.warmup_tokens, "ema": shape.ema}
    return plan.model_copy(update=found)


def _p_and_tokens(
    plan: Plan, several: Sequence[Paths], grid: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Largest p-value over the risks, and tokens, at each threshold; both [g]."""
    levels = (plan.alpha, *(risk.alpha for risk in plan.risks))
    found = steps(several[0])
    tables = [sweep(paths, grid, found) for paths in several]
    p = [
        risk_p_values(plan, paths, table, found, alpha)
        for paths, table, alpha in zip(several, tables, levels, strict=True)
    ]
    return np.max(p, axis=0), tables[0].tokens


def _front(p: NDArray[np.float64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (shape, threshold) that no other one beats in both, smallest p first; [k, 2]."""
    flat_p, flat_tokens = p.ravel(), tokens.ravel()
    order = np.lexsort((np.arange(len(flat_p)), flat_tokens, flat_p))
    least = np.minimum.accumulate(flat_tokens[order])
    better = np.concatenate([[True], flat_tokens[order][1:] < least[:-1]])
    return np.stack(np.unravel_index(order[better], p.shape), axis=1)
