"""Traces as arrays, before any policy: scores, places, losses and costs at every boundary.

Knows the scorer, the losses and what is wrong with incomplete traces; knows no policy: `shapes` applies
one, and several may be tried on the same signals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from desist.calibration.losses import GRADED, Loss, Truncated, bad_if_stopped, count_unjudged, token_regret
from desist.calibration.scorers import TraceScorer
from desist.controller.holdoff import held_places
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind, BoundaryRecord, Trace

__all__ = ["Label", "Missing", "Signals", "build_signals", "full_tokens", "restrict", "stop_tokens"]

Missing = Literal["refuse", "pass"]
Label = Callable[[Trace, BoundaryRecord], bool | None]


@dataclass(frozen=True, slots=True)
class Signals:
    """n traces, padded to t boundaries.

    `scores` [n, t], nan where there is none; `positions` [n, t]; `held` [n, t]: a hold-off zone is open;
    `bad` [n, t]: a stop there is a loss; `parts` [n, t]: how much of one, in parts of 1/PARTS (None: all of
    it); `tokens` [n, t]: all tokens generated if the policy stops there; `full_tokens` [n]: if it never
    does (probe tokens of the scorer included); `run_tokens` [n]: the plain full run; `unjudged`: boundaries
    whose judge could not decide.
    """

    scores: NDArray[np.float64]
    positions: NDArray[np.int64]
    held: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    parts: NDArray[np.int32] | None
    tokens: NDArray[np.int64]
    full_tokens: NDArray[np.int64]
    run_tokens: NDArray[np.int64]
    unjudged: int = 0

    def __len__(self) -> int:
        return len(self.full_tokens)

    def take(self, rows: NDArray[np.int64]) -> Signals:
        """The signals of some traces, in the order given."""
        return Signals(
            self.scores[rows],
            self.positions[rows],
            self.held[rows],
            self.bad[rows],
            None if self.parts is None else self.parts[rows],
            self.tokens[rows],
            self.full_tokens[rows],
            self.run_tokens[rows],
        )


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


def build_signals(
    traces: Sequence[Trace],
    scorer: TraceScorer,
    loss: Loss | Label,
    truncated: Truncated = "answered",
    missing: Missing = "refuse",
) -> Signals:
    """Arrays of `traces`. `missing` "pass": boundaries without a score are passed over, as they are live.

    Raises CalibrationError with counts where scores or labels are missing, not a number or outside [0, 1].
    """
    width = max((len(trace.boundaries) for trace in traces), default=0)
    shape = (len(traces), width)
    scores = np.full(shape, np.nan)
    positions, tokens = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    held, bad = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    graded = loss in GRADED if isinstance(loss, str) else False
    parts = np.zeros(shape, dtype=np.int32) if graded else None
    full = np.fromiter((full_tokens(trace) for trace in traces), dtype=np.int64, count=len(traces))
    run, unjudged = full.copy(), 0
    faults = _Faults(missing)
    for row, trace in enumerate(traces):
        count = len(trace.boundaries)
        if count == 0:
            continue
        found = scorer(trace)
        faults.scores(trace, found)
        scores[row, :count] = np.asarray(found, dtype=np.float64)  # None becomes nan
        kept = np.asarray([boundary.position for boundary in trace.boundaries], dtype=np.int64)
        ends = np.asarray([stop_tokens(trace, b) for b in trace.boundaries], dtype=np.int64)
        positions[row, :count] = kept
        held[row, :count] = _held(trace)
        if isinstance(loss, str):
            flags = [bad_if_stopped(trace, boundary, loss, truncated) for boundary in trace.boundaries]
            unjudged += count_unjudged(trace, loss)
        else:
            flags = [loss(trace, boundary) for boundary in trace.boundaries]
        faults.labels(trace, flags)
        bad[row, :count] = np.asarray(flags, dtype=np.bool_)
        if parts is not None:
            parts[row, :count] = token_regret(trace, bad[row, :count].tolist(), truncated)
        if scorer.needs_answers:  # every answer forced on the way is paid for; the last one is the answer
            probes = np.cumsum(ends - kept)
            tokens[row, :count] = kept + probes
            full[row] += int(probes[-1])
        else:
            tokens[row, :count] = ends
    faults.refuse(scorer.name, unjudged)
    return Signals(scores, positions, held, bad, parts, tokens, full, run, unjudged)


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
        if len(scores) != len(trace.boundaries):
            raise CalibrationError(
                f"{len(scores)} scores for the {len(trace.boundaries)} boundaries of trace {trace.trace_id}. "
                "Give one per boundary, or None."
            )
        self.boundaries += len(scores)
        for boundary, score in zip(trace.boundaries, scores, strict=True):
            if score is None:
                if self.missing == "refuse":
                    self._add("have no score", trace, boundary)
            elif not 0 <= score <= 1:  # also where it is not a number
                self._add("have a score that is not in [0, 1]", trace, boundary)

    def labels(self, trace: Trace, flags: Sequence[bool | None]) -> None:
        if None not in flags:
            return
        for boundary, flag in zip(trace.boundaries, flags, strict=True):
            if flag is None:
                self._add("have no label", trace, boundary)

    def _add(self, fault: str, trace: Trace, boundary: BoundaryRecord) -> None:
        self.counts[fault] += 1
        self.first.setdefault(fault, f"trace {trace.trace_id}, boundary {boundary.index}")

    def refuse(self, scorer: str, unjudged: int) -> None:
        if unjudged and unjudged == self.boundaries:
            self.counts["have no label, though their traces name a judge"] = unjudged
            self.first["have no label, though their traces name a judge"] = "all of them"
        if self.counts:
            found = "; ".join(
                f"{count} of {self.boundaries} boundaries {fault} (first: {self.first[fault]})"
                for fault, count in sorted(self.counts.items())
            )
            raise CalibrationError(
                f"scorer '{scorer}': {found}. Score and label every boundary, or leave out their kind."
            )
