"""Replay: what the stop machine would have done on a saved trace, and what it would have cost.

It drives the very machine that runs live, over the boundaries a trace stores. Knows traces and controls;
does no I/O. What a trace does not store is never made up: a budget that cuts between two boundaries has
no known answer, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from desist.controller.core import Boundary, Control, Decision
from desist.controller.holdoff import held_places
from desist.controller.machine import StopMachine
from desist.controller.scorers import StoredScore
from desist.data.schema import BoundaryRecord, Trace

__all__ = ["Replayed", "held_at", "replay_many", "replay_trace"]

ScoreOf = Callable[[Trace, BoundaryRecord], float | None]
BudgetAt = Literal["token", "boundary"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One policy on one trace.

    `decision` is the stop (None: it ran to the end) and `stop_index` the boundary's index (None also
    for a cut between boundaries). `answer` is the text after the hand-off, or the full answer.
    `n_tokens` is everything generated: reasoning kept, hand-off, answer, and the scorer's own tokens.
    `answer_known` is False where no answer was collected at the stop; `estimated` is True where the
    answer's tokens were not measured either, and those of the full answer stand in for them.
    `shadow` is the first stop that mode "shadow" would have made.
    """

    decision: Decision | None
    stop_index: int | None
    answer: str | None
    n_tokens: int
    answer_known: bool = True
    estimated: bool = False
    shadow: Decision | None = None


def held_at(trace: Trace) -> tuple[bool, ...]:
    """For each boundary of a trace, whether it lies inside a hold-off zone (told by the text)."""
    return held_places(trace.reasoning, (record.char for record in trace.boundaries))


def replay_trace(
    trace: Trace,
    control: Control,
    scorer: ScoreOf | None = None,
    *,
    budget_at: BudgetAt = "token",
    max_tokens: int | None = None,
    min_answer_tokens: int = 256,
    handoff_tokens: int = 0,
    held: Sequence[bool] | None = None,
) -> Replayed:
    """Replay one trace. `scorer` None reads the stored score that the policy names.

    `budget_at` "token" cuts where the live system cuts, possibly between two boundaries, where the
    answer is not known; "boundary" lets a budget act at the first boundary at or after it, without a
    limit to the grace, which is what saved traces can evaluate exactly. `max_tokens` None is the
    one the trace was sampled with. `held` is `held_at(trace)`, for callers that replay a trace often.
    """
    scorer = scorer or StoredScore(control.policy.scorer)
    machine = StopMachine(
        control,
        max_tokens=max_tokens or trace.sampling.max_tokens,
        min_answer_tokens=min_answer_tokens,
        handoff_tokens=handoff_tokens,
    )
    zones = held_at(trace) if held is None else held
    stop: BoundaryRecord | None = None
    for record, inside in zip(trace.boundaries, zones, strict=True):
        if budget_at == "token" and _cut(machine, record.position - 1):
            break
        boundary = Boundary(record.index, record.position, record.kind, record.text)
        if machine.at_boundary(boundary, scorer(trace, record), held=inside).stops:
            stop = record
            break
    else:
        if budget_at == "token":
            _cut(machine, trace.n_reasoning_tokens)
    return _account(trace, machine, stop, scorer)


def replay_many(
    traces: Iterable[Trace],
    plans: Mapping[str, tuple[Control, ScoreOf | None]],
    *,
    budget_at: BudgetAt = "token",
    max_tokens: int | None = None,
) -> Iterator[tuple[Trace, dict[str, Replayed]]]:
    """Replay each trace under several named policies; traces are read one at a time."""
    for trace in traces:
        held = held_at(trace)
        yield (
            trace,
            {
                name: replay_trace(
                    trace, control, scorer, budget_at=budget_at, max_tokens=max_tokens, held=held
                )
                for name, (control, scorer) in plans.items()
            },
        )


def _cut(machine: StopMachine, position: int) -> bool:
    """Whether the hard limit cuts at or before this position; the live system asks at every token."""
    if machine.hard_limit is None:
        return False
    first = max(machine.hard_limit, 1)  # nothing is asked before the first token
    return position >= first and machine.advance(first).stops


def _account(trace: Trace, machine: StopMachine, stop: BoundaryRecord | None, scorer: ScoreOf) -> Replayed:
    decision = machine.stopped
    cost = getattr(scorer, "cost", None)
    if decision is None:
        spent = cost(trace, None) if cost else 0
        total = trace.n_reasoning_tokens + trace.n_answer_tokens + spent
        return Replayed(None, None, trace.answer, total, shadow=machine.shadow)
    if stop is None:
        return Replayed(
            decision, None, None, decision.position + trace.n_answer_tokens + _trials(trace, decision, cost),
            answer_known=False, estimated=True, shadow=machine.shadow,
        )  # fmt: skip
    measured = stop.forced_tokens
    answer_tokens = trace.n_answer_tokens if measured is None else measured
    spent = cost(trace, stop) if cost else 0
    return Replayed(
        decision,
        stop.index,
        stop.forced_answer,
        decision.position + answer_tokens + spent,
        answer_known=stop.forced_answer is not None,
        estimated=measured is None,
        shadow=machine.shadow,
    )


def _trials(
    trace: Trace, decision: Decision, cost: Callable[[Trace, BoundaryRecord | None], int] | None
) -> int:
    """The scorer's tokens up to a cut between boundaries: as if stopped at the next boundary."""
    if cost is None:
        return 0
    following = (record for record in trace.boundaries if record.position > decision.position)
    return cost(trace, next(following, None))
