"""The training data, pool by pool, each drawn anew from the seed and its number.

Knows which kinds of rows are wanted at which point of the training and how rows become batches of similar
length. A pool depends on nothing but (seed, number, progress), so a resumed run sees the very same rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from desist.data.reasoner.problems import WordProblem, draw_problem
from desist.data.reasoner.rows import Row, RowMaker
from desist.data.splits import problem_id, split_of

#: Share of each kind of row until the given progress (0 to 1).
PHASES: tuple[tuple[float, dict[str, float]], ...] = (
    (0.08, {"sums": 0.45, "clean": 0.45, "unthinking": 0.03, "full": 0.07}),
    (0.20, {"sums": 0.15, "clean": 0.10, "unthinking": 0.03, "full": 0.30, "cut": 0.07, "dense": 0.35}),
    (0.55, {"sums": 0.12, "unthinking": 0.04, "full": 0.32, "cut": 0.13, "dense": 0.39}),
    (0.72, {"sums": 0.04, "unthinking": 0.05, "full": 0.38, "cut": 0.16, "dense": 0.37}),
    (1.01, {"sums": 0.01, "unthinking": 0.06, "full": 0.55, "cut": 0.20, "dense": 0.18}),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right to one length."""

    ids: list[list[int]]
    weights: list[list[float]]
    tokens: int


def draw_own_problem(rng: random.Random) -> WordProblem:
    """A problem of the reasoner's own split, the only one it is trained on."""
    while True:
        problem = draw_problem(rng)
        if split_of(problem_id(problem.text)) == "reasoner":
            return problem


def _kinds(progress: float) -> dict[str, float]:
    return next(shares for until, shares in PHASES if progress < until)


def draw_pool(maker: RowMaker, rng: random.Random, progress: float, size: int) -> list[Row]:
    """`size` rows in the mixture of this point of the training."""
    shares = _kinds(progress)
    rows = []
    for kind in rng.choices(list(shares), list(shares.values()), k=size):
        rows.append(maker.sums() if kind == "sums" else getattr(maker, kind)(draw_own_problem(rng)))
    return rows


def batches(
    rows: Sequence[Row], rng: random.Random, *, tokens: int, pad: int, multiple: int = 16
) -> list[Batch]:
    """Rows of similar length together, about `tokens` a batch, in random order."""
    made: list[Batch] = []
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        length = -(-len(row.ids) // multiple) * multiple
        if group and (len(group) + 1) * length > tokens:
            made.append(_pad(group, pad, multiple))
            group = []
        group.append(row)
    if group:
        made.append(_pad(group, pad, multiple))
    rng.shuffle(made)
    return made


def _pad(rows: Sequence[Row], pad: int, multiple: int) -> Batch:
    length = -(-max(len(row.ids) for row in rows) // multiple) * multiple
    return Batch(
        ids=[row.ids + [pad] * (length - len(row.ids)) for row in rows],
        weights=[row.weights + [0.0] * (length - len(row.ids)) for row in rows],
        tokens=sum(len(row.ids) for row in rows),
    )
