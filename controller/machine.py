"""The stop machine: scores and positions in, decisions out (design, section 4).

The same machine runs in every engine and in the offline replay. It reads only the past, keeps its state
by position (a position seen twice counts once, `rewind` forgets rejected drafts) and does no I/O.

Order of the rules at a place: a stop asked for from outside (by hand, by a probe that runs elsewhere, for a
loop in the text) > hold-off zone > hard budget > score > give-up. Giving up is the score's rule on 1 - score
with a threshold and a warm-up of its own (`desist.calibration.two_sided` certifies it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from desist.controller.core import Action, Boundary, Control, Decision, GiveUp, Mode, Policy, StopReason
from desist.data.errors import ControlError

__all__ = ["StopMachine", "answer_reserve", "grace_tokens"]

GRACE_TOKENS = 64
_CHARACTER = 4  # tokens that one character may take


def grace_tokens(budget: int) -> int:
    """How long a hard budget waits for a clean boundary: 10 % of it, at most 64 tokens."""
    return min(GRACE_TOKENS, budget // 10)


def answer_reserve(max_tokens: int, min_answer_tokens: int = 256) -> int:
    """Tokens kept for the answer: `min_answer_tokens`, or a quarter of `max_tokens` if smaller."""
    return min(min_answer_tokens, max(1, max_tokens // 4))


class _Low(NamedTuple):
    """The give-up side after one scored boundary: smoothed 1 - score, boundaries in a row above."""

    position: int
    smoothed: float
    streak: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """The state after one boundary: smoothed score, boundaries in a row above the threshold."""

    position: int
    smoothed: float | None
    streak: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class _Asked:
    """A stop asked for from outside: since which position, and what is to be reported."""

    position: int
    reason: StopReason
    index: int | None
    score: float | None
    certified: bool


_Cause = tuple[StopReason, bool]
"""Why scores would end the trace at a boundary, and whether a certificate covers that."""


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
        self._room = (max_tokens, min_answer_tokens, handoff_tokens)
        self.soft_limit, self.hard_limit = _limits(control, *self._room)
        self._entries: list[_Entry] = []
        self._lows: list[_Low] = []  # of a policy that gives up
        self._stopped: Decision | None = None
        self._shadow: Decision | None = None
        self._seen = 0  # the furthest position seen
        self._asked: _Asked | None = None  # a stop asked for from outside
        self._withdrawn: list[Decision] = []  # stops that could not be carried out

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
        cause: _Cause | None = None
        if score is not None and not math.isnan(score):
            policy = self.control.policy
            smoothed = score if smoothed is None else policy.ema * score + (1.0 - policy.ema) * smoothed
            above = policy.lam is not None and smoothed > policy.lam and position >= policy.warmup_tokens
            streak = streak + 1 if above else 0
            if policy.give_up is not None and self._hopeless(policy, policy.give_up, score, position):
                cause = (StopReason.GIVE_UP, policy.give_up.certified)
            if streak >= policy.patience:  # where both sides would end it, the stop goes before
                cause = (policy.reason, policy.certified)
        decision = self._rules(position, index, smoothed, cause, held)
        self._entries.append(_Entry(position, smoothed, streak, decision))
        self._seen = max(self._seen, position)
        return decision

    def advance(self, position: int, *, held: bool = False, whole: bool = True) -> Decision:
        """Decide at a token that is no boundary: hard budget and stops asked for from outside only.

        `position` counts that token. `whole` is False where the token ends inside a character.
        """
        if self._stopped is not None:
            return self._stopped
        self._seen = max(self._seen, position)
        if whole and not self._waits_for_boundary:
            if (asked := self._asked_for(position, held)) is not None:
                return self._stop(
                    Decision(Action.STOP, asked.reason, position, asked.index, asked.score, asked.certified)
                )
            if self.hard_limit is not None and position >= self.hard_limit:
                return self._stop(Decision(Action.STOP, StopReason.BUDGET, position))
        return Decision(Action.CONTINUE, StopReason.NONE, position)

    @property
    def watch_from(self) -> int | None:
        """The position from which on `advance` may do anything; None: nowhere."""
        return 0 if self._asked is not None else self.hard_limit

    def watches(self, position: int) -> bool:
        """Whether `advance` may do anything at a token here; most tokens need not be asked about."""
        return self.watch_from is not None and position >= self.watch_from

    @property
    def asked_at(self) -> int | None:
        """The position at which a stop was first asked for from outside; None: it was not."""
        return None if self._asked is None else self._asked.position

    @property
    def unlimited(self) -> bool:
        """Whether nothing but a score could stop at a boundary: no budget, no reserve, nothing asked for."""
        return self._asked is None and self.soft_limit is None

    def stop_now(
        self,
        reason: StopReason = StopReason.MANUAL,
        *,
        index: int | None = None,
        score: float | None = None,
        certified: bool = False,
        position: int = 0,
    ) -> None:
        """Ask for a stop from outside, in any mode: at the next token outside hold-off zones.

        Inside a zone it waits at most 64 tokens. The arguments are what the decision reports: by default
        a stop by hand; a probe that runs elsewhere names the boundary that it has judged. `position`:
        where the trace stands, if the machine was not told of each token. The first request counts.
        """
        if self._asked is None:
            self._asked = _Asked(max(self._seen, position), reason, index, score, certified)

    def withdraw(self) -> None:
        """Take the stop back: the engine could not carry it out. It is tried again at the next boundary."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            self._withdrawn.append(stopped)
            self._mark(replace(stopped, action=Action.HOLD))

    def reinstate(self) -> None:
        """The last stop taken back stands after all: what spoke against it was a draft that was refused.

        Call `rewind` to the stop's position before.
        """
        if self._withdrawn:
            self._stopped = self._withdrawn.pop()
            self._mark(self._stopped)

    def _mark(self, decision: Decision) -> None:
        """Write a decision into the boundary that it was taken at, if it was one."""
        last = self._entries[-1] if self._entries else None
        if last is not None and last.position == decision.position:
            self._entries[-1] = replace(last, decision=decision)

    def cap(self, mode: Mode) -> None:
        """Lower the mode to at most `mode` from now on (the operator's kill switch). Never raises it."""
        lowered = self.control.lowered(mode)
        if lowered is not self.control:
            self.control = lowered
            self.soft_limit, self.hard_limit = _limits(lowered, *self._room)

    def rewind(self, position: int) -> None:
        """Forget everything after `position`: rejected drafts, a trace that is gone over again."""
        while self._entries and self._entries[-1].position > position:
            self._entries.pop()
        while self._lows and self._lows[-1].position > position:
            self._lows.pop()
        self._seen = min(self._seen, position)
        while self._withdrawn and self._withdrawn[-1].position > position:
            self._withdrawn.pop()
        if self._stopped is not None and self._stopped.position > position:
            self._stopped = None
        if self._shadow is not None and self._shadow.position > position:
            self._shadow = None

    @property
    def _waits_for_boundary(self) -> bool:
        """Whether a stop was taken back and no boundary has come since."""
        if not self._withdrawn:
            return False
        return not self._entries or self._entries[-1].position <= self._withdrawn[-1].position

    def _hopeless(self, policy: Policy, give_up: GiveUp, score: float, position: int) -> bool:
        """Take one score into the give-up side, smoothed apart, so that it rounds as in calibration."""
        last = self._lows[-1] if self._lows else None
        low = 1.0 - score
        if last is not None:
            low = policy.ema * low + (1.0 - policy.ema) * last.smoothed
        above = low > give_up.above and position >= give_up.after
        streak = (last.streak if last else 0) + 1 if above else 0
        self._lows.append(_Low(position, low, streak))
        return streak >= policy.patience

    def _rules(
        self, position: int, index: int, score: float | None, cause: _Cause | None, held: bool
    ) -> Decision:
        limited = self.soft_limit is not None and position >= self.soft_limit
        overdue = self.hard_limit is not None and position >= self.hard_limit
        if (asked := self._asked_for(position, held)) is not None:
            judged = asked.index if asked.index is not None else index
            found = score if asked.score is None else asked.score
            return self._stop(Decision(Action.STOP, asked.reason, position, judged, found, asked.certified))
        if limited:
            action = Action.HOLD if held and not overdue else Action.STOP
            decision = Decision(action, StopReason.BUDGET, position, index, score)
            return self._stop(decision) if decision.stops else decision
        if cause is None or self.control.mode == "off":
            return Decision(Action.CONTINUE, StopReason.NONE, position, index, score)
        reason, certified = cause
        if held:
            return Decision(Action.HOLD, reason, position, index, score)
        decision = Decision(Action.STOP, reason, position, index, score, certified)
        if self.control.mode == "active":
            return self._stop(decision)
        self._shadow = self._shadow or decision
        return Decision(Action.CONTINUE, StopReason.NONE, position, index, score)

    def _asked_for(self, position: int, held: bool) -> _Asked | None:
        asked = self._asked
        if asked is None or (held and position < asked.position + GRACE_TOKENS):
            return None
        return asked

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
        # A character that is open at the limit is finished first, which must not cost the last token.
        kept = max(answer_reserve(max_tokens, min_answer_tokens), _CHARACTER)
        room = max(0, max_tokens - kept - handoff_tokens)
        soft.append(room - grace_tokens(room))
        hard.append(room)
    return (min(soft), min(hard)) if soft else (None, None)
