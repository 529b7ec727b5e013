"""A policy's shape on traces: where it would stop at each threshold, and at what cost.

The STATISTIC of a boundary is the number with which the stop machine compares lam there (see `shapes`), so
the policy with threshold lam stops at the first boundary whose statistic exceeds lam. Only running-maximum
RECORDS can be that first one: a record is the stop exactly for lam in [earlier maximum, record). All
figures at all thresholds are sums over these steps, computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from desist.calibration.losses import PARTS, Loss, Truncated
from desist.calibration.scorers import TraceScorer
from desist.calibration.shapes import shaped
from desist.calibration.signals import (
    Label,
    Missing,
    Signals,
    build_signals,
    full_tokens,
    restrict,
    stop_tokens,
)
from desist.controller.core import Policy
from desist.data.schema import Trace

__all__ = [
    "Missing",
    "Paths",
    "Steps",
    "Sweep",
    "build_paths",
    "full_tokens",
    "paths_of",
    "restrict",
    "steps",
    "stop_tokens",
    "sweep",
    "weigh",
]


@dataclass(frozen=True, slots=True)
class Paths:
    """n traces, padded to t boundaries.

    `statistic` [n, t] float64, -inf where no stop is possible; `bad` [n, t]: a stop there is a loss;
    `tokens` [n, t]: all tokens generated if the policy stops there; `full_tokens` [n]: if it never does
    (probe tokens of the scorer included); `run_tokens` [n]: the plain full run. `parts` [n, t]: the loss in
    parts of 1/PARTS where it is a share (None: all of it where `bad`). `problem` [n]: number of the
    problem, from 0, where several traces of one problem count together (None: each by itself).
    """

    statistic: NDArray[np.float64]
    bad: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    full_tokens: NDArray[np.int64]
    run_tokens: NDArray[np.int64]
    parts: NDArray[np.int32] | None = None
    problem: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.full_tokens)

    @property
    def n(self) -> int:
        """Number of problems: what the guarantee counts."""
        return len(self) if self.problem is None else int(self.problem.max(initial=-1)) + 1

    def stops(self, lam: float | None) -> NDArray[np.int64]:
        """Index of the boundary (in the padded row) where the policy stops, [n]; -1 where it never does."""
        if lam is None or self.statistic.shape[1] == 0:
            return np.full(len(self), -1, dtype=np.int64)
        crossed = self.statistic > lam
        return np.where(crossed.any(axis=1), crossed.argmax(axis=1), -1).astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Paths:
        """The paths of some traces, in the order given; each then counts by itself."""
        return Paths(
            self.statistic[rows],
            self.bad[rows],
            self.tokens[rows],
            self.full_tokens[rows],
            self.run_tokens[rows],
            None if self.parts is None else self.parts[rows],
        )

    def per_problem(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest of `values` [n] among the traces of each problem."""
        if self.problem is None:
            return values
        worst = np.full(self.n, -np.inf)
        np.maximum.at(worst, self.problem, values)
        return worst


@dataclass(frozen=True, slots=True)
class Steps:
    """All possible stops: trace `row` stops at boundary `column` exactly for lam in [`low`, `high`).

    Arrays of one length, ordered by trace and then by rising threshold.
    """

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A policy at every threshold of `grid` [g]: problems lost, traces stopped, tokens generated.

    `parts` [g]: the losses' sum in parts of 1/PARTS where the loss is a share.
    """

    grid: NDArray[np.float64]
    losses: NDArray[np.int64]
    stopped: NDArray[np.int64]
    tokens: NDArray[np.int64]
    n: int
    run_tokens: int
    parts: NDArray[np.int64] | None = None

    @property
    def saved(self) -> NDArray[np.float64]:
        """Share of the full runs' tokens saved at each threshold, net of everything generated, [g]."""
        return 1 - self.tokens / max(1, self.run_tokens)

    @property
    def risk(self) -> NDArray[np.float64]:
        """Mean loss at each threshold, [g]."""
        if self.parts is not None:
            return self.parts / (PARTS * max(1, self.n))
        return self.losses / max(1, self.n)


def steps(paths: Paths) -> Steps:
    """Every boundary of every trace that is the stop of some threshold, with these thresholds."""
    if paths.statistic.shape[1] == 0:
        none = np.zeros(0, dtype=np.int64)
        return Steps(none, none, np.zeros(0), np.zeros(0))
    running = np.maximum.accumulate(paths.statistic, axis=1)
    before = np.full_like(running, -np.inf)
    before[:, 1:] = running[:, :-1]
    row, column = np.nonzero(paths.statistic > before)
    return Steps(row, column, before[row, column], paths.statistic[row, column])


def sweep(paths: Paths, grid: NDArray[np.float64], found: Steps | None = None) -> Sweep:
    """Count losses, stops and tokens at every threshold. Strict: a statistic equal to lam does not stop.

    `grid`: [g], falling. `found`: the steps of `paths`, where they are known already.
    """
    found = steps(paths) if found is None else found
    place = (found.row, found.column)
    extra = paths.tokens[place] - paths.full_tokens[found.row]
    at = _places(found.low, found.high, grid)
    losses = _weighted(at, paths.bad[place]) if paths.problem is None else _lost_problems(paths, found, grid)
    return Sweep(
        grid=grid,
        losses=losses,
        stopped=_weighted(at, None),
        tokens=_weighted(at, extra) + int(paths.full_tokens.sum()),
        n=paths.n,
        run_tokens=int(paths.run_tokens.sum()),
        parts=None if paths.parts is None else _weighted(at, paths.parts[place]),
    )


def weigh(found: Steps, weights: NDArray[Any] | None, grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sum of the whole-numbered `weights` (None: 1) of the steps that hold each threshold of `grid`, [g]."""
    return _weighted(_places(found.low, found.high, grid), weights)


class _Places(NamedTuple):
    """Where intervals begin and end among `size` thresholds in rising order."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    size: int


def _places(low: NDArray[np.float64], high: NDArray[np.float64], grid: NDArray[np.float64]) -> _Places:
    rising = grid[::-1]
    return _Places(np.searchsorted(rising, low), np.searchsorted(rising, high), len(grid))


def _weighted(at: _Places, weights: NDArray[Any] | None) -> NDArray[np.int64]:
    """Sum of the weights of the intervals that hold each threshold, highest first."""
    change = np.bincount(at.begin, weights, at.size + 1) - np.bincount(at.end, weights, at.size + 1)
    # Floats hold these whole numbers exactly: they stay far below 2**53.
    return np.cumsum(change)[:-1][::-1].astype(np.int64)


def paths_of(signals: Signals, policy: Policy, problem: NDArray[np.int64] | None = None) -> Paths:
    """The paths of `signals` under the shape of `policy` (its threshold is not used)."""
    return Paths(
        shaped(signals.scores, signals.positions, signals.held, policy),
        signals.bad,
        signals.tokens,
        signals.full_tokens,
        signals.run_tokens,
        signals.parts,
        problem,
    )


def build_paths(
    traces: Sequence[Trace],
    policy: Policy,
    scorer: TraceScorer,
    loss: Loss | Label,
    truncated: Truncated = "answered",
    missing: Missing = "refuse",
) -> Paths:
    """Arrays of `traces` under the shape of `policy`; the other arguments as in `build_signals`.

    Raises CalibrationError with counts where scores or labels are missing, not a number or outside [0, 1].
    """
    return paths_of(build_signals(traces, scorer, loss, truncated, missing), policy)


def _lost_problems(paths: Paths, found: Steps, grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """Problems with at least one lost trace at each threshold, highest first."""
    wrong = paths.bad[found.row, found.column]
    numbers = np.arange(len(paths)) if paths.problem is None else paths.problem
    owner = numbers[found.row[wrong]]
    order = np.lexsort((found.low[wrong], owner))
    owner, low, high = owner[order], found.low[wrong][order], found.high[wrong][order]
    # Where intervals of one problem overlap they count once: cut each at the highest end before it.
    reach = np.full(len(owner), -np.inf)
    for place in range(1, len(owner)):
        if owner[place] == owner[place - 1]:
            reach[place] = max(reach[place - 1], high[place - 1])
    return _weighted(_places(np.minimum(np.maximum(low, reach), high), high, grid), None)
