"""Traces and a policy's shape as arrays: where the policy would stop at each threshold, and at what cost.

The STATISTIC of a boundary is the number with which the stop machine compares lam there: patience,
warm-up, smoothing and hold-off zones are inside it, and it is -inf where no stop is possible. So the
policy with threshold lam stops at the first boundary whose statistic exceeds lam. One computation for all
thresholds; `desist.controller.replay` is the specification, and a test holds the two together.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from desist.calibration.losses import Loss, Truncated, bad_if_stopped
from desist.calibration.scorers import TraceScorer
from desist.controller.core import Policy
from desist.controller.holdoff import held_places
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind, BoundaryRecord, Trace

__all__ = ["Missing", "Paths", "Sweep", "build_paths", "full_tokens", "restrict", "stop_tokens", "sweep"]

Missing = Literal["refuse", "pass"]
Label = Callable[[Trace, BoundaryRecord], bool | None]


@dataclass(frozen=True, slots=True)
class Paths:
    """n traces, padded to t boundaries.

    `statistic` [n, t] float64, -inf where no stop is possible; `bad` [n, t]: a stop there is a loss;
    `tokens` [n, t]: all tokens generated if the policy stops there; `full_tokens` [n]: if it never does
    (probe tokens of the scorer included); `run_tokens` [n]: the plain full run.
    """

    statistic: NDArray[np.float64]
    bad: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    full_tokens: NDArray[np.int64]
    run_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.full_tokens)

    def stops(self, lam: float | None) -> NDArray[np.int64]:
        """Index of the boundary (in the padded row) where the policy stops, [n]; -1 where it never does."""
        if lam is None or self.statistic.shape[1] == 0:
            return np.full(len(self), -1, dtype=np.int64)
        crossed = self.statistic > lam
        return np.where(crossed.any(axis=1), crossed.argmax(axis=1), -1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A policy at every threshold of `grid` [g]: traces with a loss, traces stopped, tokens generated."""

    grid: NDArray[np.float64]
    losses: NDArray[np.int64]
    stopped: NDArray[np.int64]
    tokens: NDArray[np.int64]
    n: int
    run_tokens: int

    @property
    def saved(self) -> NDArray[np.float64]:
        """Share of the full runs' tokens saved at each threshold, net of everything generated, [g]."""
        return 1 - self.tokens / max(1, self.run_tokens)


def sweep(paths: Paths, grid: NDArray[np.float64]) -> Sweep:
    """Count losses, stops and tokens at every threshold. Strict: a statistic equal to lam does not stop."""
    losses = np.zeros(len(grid), dtype=np.int64)
    stopped, tokens = losses.copy(), losses.copy()
    width = paths.statistic.shape[1]
    running = np.maximum.accumulate(paths.statistic, axis=1)
    bad = np.concatenate([paths.bad, np.zeros((len(paths), 1), dtype=np.bool_)], axis=1)
    cost = np.concatenate([paths.tokens, paths.full_tokens[:, None]], axis=1)
    for row in range(len(paths)):
        stop = np.searchsorted(running[row], grid, side="right")
        losses += bad[row, stop]
        stopped += stop < width
        tokens += cost[row, stop]
    return Sweep(grid, losses, stopped, tokens, len(paths), int(paths.run_tokens.sum()))


def full_tokens(trace: Trace) -> int:
    """All tokens of the full run."""
    return trace.n_reasoning_tokens + trace.n_answer_tokens


def stop_tokens(trace: Trace, boundary: BoundaryRecord) -> int:
    """All tokens of a run stopped at `boundary`: reasoning kept, hand-off and answer.

    Where the forced answer's tokens were not recorded, the full run's answer stands in for their number.
    """
    forced = trace.n_answer_tokens if boundary.forced_tokens is None else boundary.forced_tokens
    return boundary.position + forced


def restrict(trace: Trace, kinds: Collection[BoundaryKind] | None) -> Trace:
    """The trace as a policy sees it that decides only at boundaries of `kinds` (None: at all)."""
    if kinds is None or all(boundary.kind in kinds for boundary in trace.boundaries):
        return trace
    return replace(trace, boundaries=tuple(b for b in trace.boundaries if b.kind in kinds))


def build_paths(
    traces: Sequence[Trace],
    policy: Policy,
    scorer: TraceScorer,
    loss: Loss | Label,
    truncated: Truncated = "no_answer",
    missing: Missing = "refuse",
) -> Paths:
    """Arrays of `traces` under the shape of `policy` (its threshold is not used).

    `missing` "pass" lets boundaries without a score be passed over, as the live machine does.
    Raises CalibrationError with counts where scores or labels are missing, not a number or outside [0, 1].
    """
    label: Label = loss if callable(loss) else _labels(loss, truncated)
    width = max((len(trace.boundaries) for trace in traces), default=0)
    shape = (len(traces), width)
    statistic = np.full(shape, -np.inf)
    bad = np.zeros(shape, dtype=np.bool_)
    tokens = np.zeros(shape, dtype=np.int64)
    full = np.fromiter((full_tokens(trace) for trace in traces), dtype=np.int64, count=len(traces))
    run = full.copy()
    faults = _Faults(missing)
    for row, trace in enumerate(traces):
        scores = scorer(trace)
        here = slice(0, len(trace.boundaries))
        faults.scores(trace, scores)
        statistic[row, here] = list(_statistics(trace, policy, scores))
        flags = [label(trace, boundary) for boundary in trace.boundaries]
        faults.labels(trace, flags)
        bad[row, here] = [bool(flag) for flag in flags]
        kept = np.asarray([boundary.position for boundary in trace.boundaries], dtype=np.int64)
        ends = np.asarray([stop_tokens(trace, b) for b in trace.boundaries], dtype=np.int64)
        if scorer.needs_answers:  # every answer forced on the way is paid for; the last one is the answer
            probes = np.cumsum(ends - kept)
            tokens[row, here] = kept + probes
            full[row] += int(probes[-1]) if len(probes) else 0
        else:
            tokens[row, here] = ends
    faults.refuse(scorer.name)
    return Paths(statistic, bad, tokens, full, run)


def _labels(loss: Loss, truncated: Truncated) -> Label:
    return lambda trace, boundary: bad_if_stopped(trace, boundary, loss, truncated)


def _statistics(trace: Trace, policy: Policy, scores: Iterable[float | None]) -> Iterator[float]:
    """What the stop machine compares with lam at each boundary; -inf where it cannot stop."""
    recent: deque[float] = deque(maxlen=policy.patience)
    smoothed, seen = None, -1
    for boundary, score, held in zip(trace.boundaries, scores, _held(trace), strict=True):
        if score is None or math.isnan(score) or boundary.position <= seen:  # passed over by the machine
            yield -math.inf
            continue
        seen = boundary.position
        smoothed = score if smoothed is None else policy.ema * score + (1.0 - policy.ema) * smoothed
        recent.append(smoothed if boundary.position >= policy.warmup_tokens else -math.inf)
        yield -math.inf if held or len(recent) < policy.patience else min(recent)


def _held(trace: Trace) -> Sequence[bool]:
    """Whether a hold-off zone is open at each boundary. Most texts hold no character that opens one."""
    if not any(opener in trace.reasoning for opener in "`~$\\{"):
        return (False,) * len(trace.boundaries)
    return held_places(trace.reasoning, (boundary.char for boundary in trace.boundaries))


class _Faults:
    """Counts what is missing or impossible, and names the first case of each."""

    def __init__(self, missing: Missing) -> None:
        self.missing = missing
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.boundaries = 0

    def scores(self, trace: Trace, scores: Sequence[float | None]) -> None:
        self.boundaries += len(trace.boundaries)
        for boundary, score in zip(trace.boundaries, scores, strict=True):
            if score is None:
                if self.missing == "refuse":
                    self._add("have no score", trace, boundary)
            elif not math.isfinite(score) or not 0 <= score <= 1:
                self._add("have a score that is not in [0, 1]", trace, boundary)

    def labels(self, trace: Trace, flags: Sequence[bool | None]) -> None:
        for boundary, flag in zip(trace.boundaries, flags, strict=True):
            if flag is None:
                self._add("have no label", trace, boundary)

    def _add(self, fault: str, trace: Trace, boundary: BoundaryRecord) -> None:
        self.counts[fault] += 1
        self.first.setdefault(fault, f"trace {trace.trace_id}, boundary {boundary.index}")

    def refuse(self, scorer: str) -> None:
        if self.counts:
            found = "; ".join(
                f"{count} of {self.boundaries} boundaries {fault} (first: {self.first[fault]})"
                for fault, count in sorted(self.counts.items())
            )
            raise CalibrationError(
                f"scorer '{scorer}': {found}. Score and label every boundary, or leave out their kind."
            )
