"""What a policy did on saved traces, per trace: where it stopped, what that cost, what was lost.

Two ways to the same arrays: through the controller's own replay (`policy_outcomes`), and through the
calibration arrays (`path_outcomes`), where a rival's probe tokens are charged. Labels are read, not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from desist.calibration.paths import Paths, full_tokens, stop_tokens
from desist.controller.core import Control, StopReason
from desist.controller.replay import replay_trace
from desist.data.schema import BoundaryRecord, Trace

__all__ = ["Outcomes", "oracle_outcomes", "path_outcomes", "policy_outcomes"]

UNKNOWN = -1
Scorer = Callable[[Trace, BoundaryRecord], float | None]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One policy on n traces; every field is an array [n].

    `stop`: index of the boundary (its own `index` field), -1 where none; `kept`: reasoning tokens kept by a
    stop, -1 where the policy never stopped; `tokens`: all tokens generated;
    `run_tokens`: those of the plain full run. The three answers are 1 (yes), 0 (no) or -1 (not known):
    `consistent` (with the full run's answer), `full_correct`, `stopped_correct`. `given_up`: the stop was
    the policy's other side, which has a loss of its own (`full_correct`).
    """

    stop: NDArray[np.int64]
    stopped: NDArray[np.bool_]
    kept: NDArray[np.int64]
    tokens: NDArray[np.int64]
    run_tokens: NDArray[np.int64]
    consistent: NDArray[np.int8]
    full_correct: NDArray[np.int8]
    stopped_correct: NDArray[np.int8]
    given_up: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.stop)

    def lost(self) -> NDArray[np.bool_]:
        """Full run right, stopped answer wrong, [n]."""
        return np.asarray((self.full_correct == 1) & (self.stopped_correct == 0))

    def gained(self) -> NDArray[np.bool_]:
        """Full run wrong, stopped answer right, [n]."""
        return np.asarray((self.full_correct == 0) & (self.stopped_correct == 1))


def policy_outcomes(
    traces: Sequence[Trace],
    control: Control,
    scorer: Scorer | None = None,
    *,
    budget_at: Literal["token", "boundary"] = "token",
    held: Sequence[Sequence[bool]] | None = None,
) -> Outcomes:
    """Replay `control` over `traces` with the controller's own machine.

    A hard budget, or the reserve that is kept for the answer, may cut between boundaries, where no answer
    was forced: those answers are unknown. `budget_at` "boundary" lets it act at the next boundary instead.
    `held`: `held_at` of each trace, for callers that try many policies.
    """
    rows = []
    for row, trace in enumerate(traces):
        zones = None if held is None else held[row]
        replayed = replay_trace(trace, control, scorer, budget_at=budget_at, held=zones)
        kept = UNKNOWN if replayed.decision is None else replayed.decision.position
        boundary = None
        if replayed.stop_index is not None:
            boundary = next(b for b in trace.boundaries if b.index == replayed.stop_index)
        gone = replayed.decision is not None and replayed.decision.reason is StopReason.GIVE_UP
        rows.append((*_row(trace, kept, boundary, replayed.n_tokens), gone))
    return _outcomes(rows)


def path_outcomes(traces: Sequence[Trace], paths: Paths, lam: float | None) -> Outcomes:
    """The policy with threshold `lam` on the traces that `paths` was built from (None: never stops)."""
    rows = []
    for row, (trace, stop) in enumerate(zip(traces, paths.stops(lam), strict=True)):
        boundary = trace.boundaries[stop] if stop >= 0 else None
        tokens = paths.tokens[row, stop] if stop >= 0 else paths.full_tokens[row]
        rows.append((*_row(trace, _position(boundary), boundary, int(tokens)), False))
    return _outcomes(rows)


def oracle_outcomes(traces: Sequence[Trace], *, settled: bool) -> Outcomes:
    """Stop with hindsight at the first boundary whose forced answer equals the full run's.

    `settled`: at the first one after which it never differs again. Both lose nothing by construction; the
    first is the zero-loss ceiling of any policy that stops at boundaries.
    """
    rows = []
    for trace in traces:
        agree = [boundary.consistent is True for boundary in trace.boundaries]
        if settled:
            breaks = [place for place, same in enumerate(agree) if not same]
            place = breaks[-1] + 1 if breaks else 0
        else:
            place = agree.index(True) if True in agree else len(agree)
        boundary = trace.boundaries[place] if place < len(agree) else None
        tokens = full_tokens(trace) if boundary is None else stop_tokens(trace, boundary)
        rows.append((*_row(trace, _position(boundary), boundary, tokens), False))
    return _outcomes(rows)


_Row = tuple[int, bool, int, int, int, int, int, int]


def _position(boundary: BoundaryRecord | None) -> int:
    return UNKNOWN if boundary is None else boundary.position


def _row(trace: Trace, kept: int, boundary: BoundaryRecord | None, tokens: int) -> _Row:
    full = _flag(trace.full_correct)
    place = UNKNOWN if boundary is None else boundary.index
    if kept == UNKNOWN:
        answers = (1, full, full)
    elif boundary is None:
        answers = (UNKNOWN, full, UNKNOWN)
    else:
        answers = (_flag(boundary.consistent), full, _flag(boundary.correct))
    return (place, kept != UNKNOWN, kept, tokens, full_tokens(trace), *answers)


def _outcomes(rows: Sequence[tuple[int, ...]]) -> Outcomes:
    kinds = (np.int64, np.bool_, *(np.int64,) * 3, *(np.int8,) * 3, np.bool_)
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays: list[Any] = [np.asarray(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
    return Outcomes(**dict(zip((field.name for field in fields(Outcomes)), arrays, strict=True)))


def _flag(value: bool | None) -> int:
    return UNKNOWN if value is None else int(value)
