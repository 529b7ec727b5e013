"""What the evidence decides under a plan: threshold, shape and give-up threshold.

Knows traces only as far as they become arrays; writes no certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from desist.calibration.choose import choose
from desist.calibration.ltt import DEFAULT_GRID
from desist.calibration.pareto import choose_pareto, order_part
from desist.calibration.paths import Missing, Paths, paths_of
from desist.calibration.plan import Plan
from desist.calibration.problems import number_problems, problem_hash
from desist.calibration.scorers import TraceScorer
from desist.calibration.shift import column_weights
from desist.calibration.signals import Signals, build_signals, restrict
from desist.calibration.two_sided import come_right, give_up_paths, give_up_threshold, two_sided_stops
from desist.controller.core import Policy
from desist.data.schema import Trace

__all__ = ["Decided", "Evidence", "decide", "gather"]

Grid = Literal["default-1", "given", "continuous"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Traces as a plan sees them (`seen`) and as arrays, one `Signals` for each of its risks.

    `weights`: of the traces for a later traffic, [n], with a mean of 1 over all that were gathered.
    """

    seen: Sequence[Trace]
    signals: tuple[Signals, ...]
    problem: NDArray[np.int64] | None
    weights: NDArray[np.float64] | None = None

    @property
    def n(self) -> int:
        """Number of problems."""
        return len(self.seen) if self.problem is None else int(self.problem.max(initial=-1)) + 1

    @property
    def boundaries(self) -> int:
        return sum(len(trace.boundaries) for trace in self.seen)


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome; `plan` holds the shape that was found, `lam` is None where nothing may stop.

    `others`: the paths of the plan's further risks. `grid`, `grid_values` and `lowest` as in the certificate;
    `saved`: share of tokens saved, net.
    """

    plan: Plan
    paths: Paths
    lam: float | None
    lowest: float | None
    grid: Grid
    grid_values: tuple[float, ...] = ()
    give_up: float | None = None
    n_given_up: int = 0
    saved: float = 0.0
    others: tuple[Paths, ...] = ()


def gather(plan: Plan, traces: Sequence[Trace], scorer: TraceScorer, missing: Missing) -> Evidence:
    """The arrays of all risks of `plan`. Raises CalibrationError where scores or labels are missing."""
    seen = [restrict(trace, plan.kinds) for trace in traces]
    losses = (plan.loss, *(risk.loss for risk in plan.risks))
    signals = tuple(build_signals(seen, scorer, loss, plan.truncated, missing) for loss in losses)
    weights = None if plan.weights is None else column_weights(traces, plan.weights)
    return Evidence(seen, signals, number_problems(traces) if plan.samples == "worst" else None, weights)


def decide(
    plan: Plan, evidence: Evidence, grid: NDArray[np.float64] | None, shapes: Sequence[Policy]
) -> Decided:
    """The threshold that the evidence allows. `grid`: given thresholds, falling (None: the default ones)."""
    if plan.method == "pareto":
        problems = [problem_hash(trace) for trace in evidence.seen]
        paths = {shape: [paths_of(one, shape) for one in evidence.signals] for shape in shapes}
        found = choose_pareto(plan, paths, order_part(problems, plan.seed), grid)
        lowest = min(found.accepted, default=None)
        saved = _saved(found.paths, found.lam)
        return Decided(
            found.plan,
            found.paths,
            found.lam,
            lowest,
            "given",
            found.accepted,
            saved=saved,
            others=found.others,
        )
    several = [paths_of(one, plan.shape(), evidence.problem) for one in evidence.signals]
    choice = choose(plan, several[0], grid, several[1:], evidence.weights)
    continuous = plan.method != "ltt"
    kind: Grid = "continuous" if continuous else DEFAULT_GRID if grid is None else "given"
    values = () if grid is None or continuous else tuple(grid.tolist())
    give_up, n_given_up, saved = None, 0, _saved(several[0], choice.lam)
    if plan.give_up_alpha is not None:
        lower = give_up_paths(plan, evidence.signals[0], come_right(evidence.seen), evidence.problem)
        give_up = give_up_threshold(plan, lower)
        ends, given_up = two_sided_stops(several[0], choice.lam, lower, give_up)
        n_given_up, saved = int(given_up.sum()), _saved_at(several[0], ends)
    others = tuple(several[1:])
    return Decided(
        plan, several[0], choice.lam, choice.lowest, kind, values, give_up, n_given_up, saved, others
    )


def _saved(paths: Paths, lam: float | None) -> float:
    return _saved_at(paths, paths.stops(lam))


def _saved_at(paths: Paths, ends: NDArray[np.int64]) -> float:
    if paths.tokens.shape[1] == 0:
        return float(1 - paths.full_tokens.sum() / max(1, paths.run_tokens.sum()))
    tokens = np.where(ends >= 0, paths.tokens[np.arange(len(paths)), ends], paths.full_tokens)
    return float(1 - tokens.sum() / max(1, paths.run_tokens.sum()))
