"""The stop machine: scores and positions in, decisions out (design, section 4).

The same machine runs in every engine and in the offline replay. It reads only the past, keeps its state
by position (a position seen twice counts once, `rewind` forgets rejected drafts) and does no I/O.

Order of the rules at a place: a request by hand > hold-off zone > hard budget > score. Loop and give-up
rules are not part of this version; their stop reasons are reserved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from desist.controller.core import Action, Boundary, Control, Decision, StopReason
from desist.data.errors import ControlError

__all__ = ["StopMachine", "answer_reserve", "grace_tokens"]

GRACE_TOKENS = 64


def grace_tokens(budget: int) -> int:
    """How long a hard budget waits for a clean boundary: 10 % of it, at most 64 tokens."""
    return min(GRACE_TOKENS, budget // 10)


def answer_reserve(max_tokens: int, min_answer_tokens: int = 256) -> int:
    """Tokens kept for the answer: `min_answer_tokens`, or a quarter of `max_tokens` if smaller."""
    return min(min_answer_tokens, max(1, max_tokens // 4))


@dataclass(frozen=True, slots=True)
class _Entry:
    """The state after one boundary: smoothed score, boundaries in a row above the threshold."""

    position: int
    smoothed: float | None
    streak: int
    decision: Decision


class StopMachine:
    """Decides for one trace.

    `control.budget` limits reasoning tokens. It is the request's own limit and acts in every mode; a
    score stops only in mode "active" (in "shadow" the first stop that would have been made is kept in
    `shadow`; in "off" scores are not looked at). `max_tokens` counts hand-off and answer too: where a
    budget is set or the mode is active, reasoning is cut early enough to leave `min_answer_tokens` (or a
    quarter of `max_tokens`, if smaller) and `handoff_tokens`.

    From `soft_limit` on, the budget stops at the first boundary outside a hold-off zone; at `hard_limit`
    it cuts wherever it is, save inside a character. Both are None without a limit.

    >>> from desist.controller.core import Policy
    >>> machine = StopMachine(Control(policy=Policy(lam=0.9)))
    >>> machine.at_boundary(Boundary(0, 12, "cue"), 0.9).stops  # strict: a tie does not stop
    False
    >>> machine.at_boundary(Boundary(1, 20, "cue"), 0.91).stops
    True
    """

    def __init__(
        self,
        control: Control,
        *,
        max_tokens: int | None = None,
        min_answer_tokens: int = 256,
        handoff_tokens: int = 0,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ControlError(f"max_tokens is {max_tokens}; ask for at least one token.")
        self.control = control
        self.soft_limit, self.hard_limit = _limits(control, max_tokens, min_answer_tokens, handoff_tokens)
        self._entries: list[_Entry] = []
        self._stopped: Decision | None = None
        self._shadow: Decision | None = None
        self._seen = 0  # the furthest position seen
        self._by_hand: int | None = None  # where a stop was asked for by hand

    @property
    def stopped(self) -> Decision | None:
        """The stop, once there is one. Every later call returns it again."""
        return self._stopped

    @property
    def shadow(self) -> Decision | None:
        """The first stop that a score would have made in mode "shadow" (its action is `stop`)."""
        return self._shadow

    def at_boundary(self, boundary: Boundary, score: float | None, *, held: bool = False) -> Decision:
        """Decide at a boundary. `score` None or NaN is no evidence: the boundary is passed over.

        Boundaries come in order of position; one that was seen before gets its old decision again.
        Raises `ControlError` for a new boundary before the last one (call `rewind` first).
        """
        if self._stopped is not None:
            return self._stopped
        position, index = boundary.position, boundary.index
        last = self._entries[-1] if self._entries else None
        if last is not None and position <= last.position:
            return self._seen_before(position)
        smoothed = last.smoothed if last else None
        streak = last.streak if last else 0
        if score is not None and not math.isnan(score):
            policy = self.control.policy
            smoothed = score if smoothed is None else policy.ema * score + (1.0 - policy.ema) * smoothed
            above = policy.lam is not None and smoothed > policy.lam and position >= policy.warmup_tokens
            streak = streak + 1 if above else 0
            ready = streak >= policy.patience and self.control.mode != "off"
        else:
            ready = False
        decision = self._rules(position, index, smoothed, ready, held)
        self._entries.append(_Entry(position, smoothed, streak, decision))
        self._seen = max(self._seen, position)
        return decision

    def advance(self, position: int, *, held: bool = False, whole: bool = True) -> Decision:
        """Decide at a token that is no boundary: hard budget and requests by hand only.

        `position` counts that token. `whole` is False where the token ends inside a character.
        """
        if self._stopped is not None:
            return self._stopped
        self._seen = max(self._seen, position)
        reason = StopReason.NONE
        if whole and self._hand_acts(position, held):
            reason = StopReason.MANUAL
        elif whole and self.hard_limit is not None and position >= self.hard_limit:
            reason = StopReason.BUDGET
        if reason is StopReason.NONE:
            return Decision(Action.CONTINUE, StopReason.NONE, position)
        return self._stop(Decision(Action.STOP, reason, position))

    def stop_now(self) -> None:
        """Ask for a stop by hand, in any mode: at the next token outside hold-off zones.

        Inside a zone it waits at most 64 tokens.
        """
        if self._by_hand is None:
            self._by_hand = self._seen

    def rewind(self, position: int) -> None:
        """Forget everything after `position`: rejected drafts, a trace that is gone over again."""
        while self._entries and self._entries[-1].position > position:
            self._entries.pop()
        self._seen = min(self._seen, position)
        if self._stopped is not None and self._stopped.position > position:
            self._stopped = None
        if self._shadow is not None and self._shadow.position > position:
            self._shadow = None

    def _rules(self, position: int, index: int, score: float | None, ready: bool, held: bool) -> Decision:
        policy = self.control.policy
        limited = self.soft_limit is not None and position >= self.soft_limit
        overdue = self.hard_limit is not None and position >= self.hard_limit
        if self._hand_acts(position, held):
            return self._stop(Decision(Action.STOP, StopReason.MANUAL, position, index, score))
        if limited:
            action = Action.HOLD if held and not overdue else Action.STOP
            decision = Decision(action, StopReason.BUDGET, position, index, score)
            return self._stop(decision) if decision.stops else decision
        if not ready:
            return Decision(Action.CONTINUE, StopReason.NONE, position, index, score)
        if held:
            return Decision(Action.HOLD, policy.reason, position, index, score)
        decision = Decision(Action.STOP, policy.reason, position, index, score, policy.certified)
        if self.control.mode == "active":
            return self._stop(decision)
        self._shadow = self._shadow or decision
        return Decision(Action.CONTINUE, StopReason.NONE, position, index, score)

    def _hand_acts(self, position: int, held: bool) -> bool:
        return self._by_hand is not None and (not held or position >= self._by_hand + GRACE_TOKENS)

    def _stop(self, decision: Decision) -> Decision:
        self._stopped = decision
        return decision

    def _seen_before(self, position: int) -> Decision:
        for entry in reversed(self._entries):
            if entry.position == position:
                return entry.decision
        raise ControlError(
            f"a boundary at position {position} came after one at {self._entries[-1].position}. "
            "Boundaries must come in order; call rewind(position) before going back."
        )


def _limits(
    control: Control, max_tokens: int | None, min_answer_tokens: int, handoff_tokens: int
) -> tuple[int | None, int | None]:
    """Where the budget begins to look for a clean boundary, and where it cuts anyhow."""
    soft: list[int] = []
    hard: list[int] = []
    if control.budget is not None:
        soft.append(control.budget)
        hard.append(control.budget + grace_tokens(control.budget))
    if max_tokens is not None and (control.mode == "active" or control.budget is not None):
        # The reserve is a promise: its grace lies before the limit, not after it.
        room = max(0, max_tokens - answer_reserve(max_tokens, min_answer_tokens) - handoff_tokens)
        soft.append(room - grace_tokens(room))
        hard.append(room)
    return (min(soft), min(hard)) if soft else (None, None)
