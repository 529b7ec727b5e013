"""One controlled request inside vLLM: what was read, decided and is to be forced, by position.

Knows the controller's session and the wire's events; no tensors, no vLLM. Rows come in order of position.
What lies beyond `committed` may be taken back (rejected drafts) and is told to nobody before. Once stopped,
the token after row `n` is `handoff[n - stop_at]`; whether vLLM really took it is seen in the next row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from desist.controller import Boundary, Decision, ModelProfile, Session
from desist.controller.core import Control, Mode, StopReason
from desist.controller.vocabulary import Vocabulary
from desist.proxy.engines.vllm.wire import (
    Blocked,
    Closed,
    Event,
    Identity,
    Opened,
    Scored,
    StopNow,
    Stopped,
    Told,
)

__all__ = ["Forced", "Reading", "Request", "Tracked"]

MASKED = "the hand-off's token was masked (grammar, allowed_token_ids, bad_words, min_tokens or logit_bias)"


@dataclass(frozen=True, slots=True)
class Request:
    """What vLLM knows of a request when it enters. `structured`: its answer follows a grammar."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int | None
    structured: bool = False


class Reading(NamedTuple):
    """A row that holds reasoning. `counted`: its token counts as reasoning (no tag, no half tag)."""

    boundary: Boundary | None
    counted: bool


class Forced(NamedTuple):
    """What the token after a row must be (`token`), and what it must not be (`locked`)."""

    token: int | None = None
    locked: frozenset[int] = frozenset()


_FREE = Forced()


@dataclass(slots=True)
class _Told:
    """An event that waits until its row is committed. `at`: generated tokens read up to it."""

    at: int
    event: Any  # built with its number when it is released


@dataclass(slots=True)
class Tracked:
    """The control of one choice. `uncontrolled` says why nothing is decided; `failed`: after an error."""

    request: Request
    identity: Identity
    session: Session
    handoff: tuple[int, ...]
    uncontrolled: str | None = None
    scoring: Any = None  # the probes that it entered with; a reload is for those that come after
    failed: bool = False
    read: int = 0  # generated tokens read
    committed: int = 0  # of them, never to be taken back
    stop_at: int | None = None  # generated tokens before the hand-off
    n_events: int = 0
    rom_states: list[tuple[int, Any]] = field(default_factory=list)  # (tokens read, state)
    token_rows: list[tuple[int, Any]] = field(default_factory=list)  # (tokens read, hidden state)
    _waiting: list[_Told] = field(default_factory=list)
    _extra: tuple[int, tuple[int, ...]] | None = None  # closing ids forced after so many tokens
    _answer_ids: list[int] = field(default_factory=list)  # read, but not yet committed
    _undone: list[tuple[int, int]] = field(default_factory=list)  # (row that spoke against a stop, its place)
    _asked: list[StopNow] = field(default_factory=list)  # from outside, since the last row

    @classmethod
    def of(
        cls,
        request: Request,
        identity: Identity,
        profile: ModelProfile,
        vocabulary: Vocabulary,
        control: Control,
        *,
        min_answer_tokens: int,
        uncontrolled: str | None = None,
    ) -> Tracked:
        """A fresh request. With a grammar the hand-off ends at the end tag; what follows is the grammar's."""
        session = Session(
            profile,
            vocabulary,
            control,
            request.prompt_ids,
            request.max_tokens,
            min_answer_tokens=min_answer_tokens,
        )
        handoff = session.handoff_ids()
        if request.structured and len(handoff) > 1:  # else it is the bare tag already
            before, tag, _ = profile.handoff("write").partition(profile.think_close)
            handoff = vocabulary.encode(before + tag)
        return cls(request, identity, session, handoff, uncontrolled)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def mode(self) -> Mode:
        """What scores may do now."""
        return self.session.control.mode

    @property
    def idle(self) -> bool:
        """Whether nothing can happen any more: thinking ended by itself, and no tag is spelled by tokens."""
        return self.stop_at is None and self.session.detector.closed and not self.session.detector.thinking

    def opened(self) -> Opened:
        """The first event."""
        return Opened(self.identity, self.prompt_tokens, self.mode, self.uncontrolled)

    def is_news(self, position: int) -> bool:
        """Whether the token at `position` is generated, and not among those that are final already."""
        return position - self.prompt_tokens + 1 > self.committed

    @property
    def rows_until_due(self) -> int | None:
        """How many rows may be passed over where the tokens say nothing; None: any number."""
        if self.stop_at is not None or self._asked:
            return 0
        due = self.session.machine.watch_from
        return None if due is None else max(0, due - self.read - 2)

    def catch_up(self, missed: Sequence[int]) -> None:
        """Read tokens whose rows were passed over: none was a boundary, none was to be followed by force."""
        if missed:
            if not (self.failed or self.idle):
                self.session.skip(missed)
            self.read += len(missed)

    def stop_now(self, command: StopNow) -> None:
        """Ask for a stop from outside. It is weighed at the next row, when all before it has been read."""
        self._asked.append(command)

    def hear(self) -> None:
        """Weigh what was asked for from outside, as of the tokens read so far."""
        for command in self._asked:
            self.session.stop_now(
                StopReason(command.reason),
                index=command.index,
                score=command.score,
                certified=command.certified,
            )
        self._asked.clear()

    def take(self, position: int, token: int, missed: Sequence[int] = ()) -> Reading | None:
        """Read the token at `position` of the sequence; what it holds if it is reasoning to be judged.

        `missed`: the tokens before it that were passed over (see `catch_up`). A row at or before the
        committed ones was seen and is passed over; one before the last read takes back what was read after
        it. Raises `LookupError` where tokens between were never seen.
        """
        n = position - self.prompt_tokens + 1
        if n <= self.committed:
            return None
        if n <= self.read:
            self._rewind(n - 1)
        if n > self.read + 1:
            self.catch_up(missed)
        self.hear()
        if n > self.read + 1:
            raise LookupError(f"token {self.read + 1} of the generation was never seen, token {n} came")
        self.read = n
        if self.stop_at is not None:
            place = n - self.stop_at - 1
            if place >= len(self.handoff):
                if self._extra is None or not self._extra[0] < n <= self._extra[0] + len(self._extra[1]):
                    self._answer_ids.append(token)
                return None
            if token == self.handoff[place]:
                return None
            self._withdraw(n, place)
        if self.failed or self.idle:
            return None
        detector = self.session.detector
        before = detector.position
        boundary = self.session.push(token)
        return Reading(boundary, detector.position > before) if detector.thinking else None

    def begin(self) -> None:
        """Decide before anything is generated: where no reasoning is allowed, the hand-off's first token is
        the first of all."""
        if self.session.machine.hard_limit == 0 and self.session.thinking:
            decision = self.decide(None, {})
            if decision.stops:
                self.tell_stop(decision)

    def decide(self, boundary: Boundary | None, scores: Mapping[str, float]) -> Decision:
        """Decide at the row just taken. A stop makes the next row's token the hand-off's first."""
        decision = self.session.decide(boundary, scores)
        if decision.stops and self.stop_at is None:
            self.stop_at = self.read
        return decision

    def tell_boundary(
        self,
        boundary: Boundary,
        scores: Mapping[str, float],
        decision: Decision,
        hidden: bytes | None = None,
        dtype: str | None = None,
        *,
        tokens: int | None = None,
        held: bool | None = None,
    ) -> None:
        """Keep the event of a boundary until its row is committed.

        `tokens`, `held`: how many were read there, and whether a zone was open, if that was in the past.
        """
        tokens = self.read if tokens is None else tokens
        held = self.session.detector.held if held is None else held

        def event(n: int) -> Scored:
            return Scored(
                self.identity, n, boundary.index, boundary.position, tokens, boundary.kind, boundary.text,
                dict(scores), Told.of(decision), held, hidden, dtype,
            )  # fmt: skip

        self._waiting.append(_Told(tokens, event))

    def tell_stop(self, decision: Decision) -> None:
        """Keep the event of a stop until its row is committed."""
        tokens = self.read
        self._waiting.append(
            _Told(tokens, lambda n: Stopped(self.identity, n, Told.of(decision), tokens, self.handoff))
        )

    def first_forced(self, position: int) -> Forced | None:
        """What the first token must be, at the row that has read the prompt's last one."""
        at_prompt = self.stop_at == 0 and self.read == 0 and position == self.prompt_tokens - 1
        return self.forced() if at_prompt else None

    def forced(self) -> Forced:
        """What the token after the row just taken must and must not be."""
        if self.stop_at is None:
            return _FREE
        done = self.read - self.stop_at
        if done < len(self.handoff):
            return Forced(self.handoff[done])
        if self._extra is not None:
            start, ids = self._extra
            if start <= self.read < start + len(ids):
                return Forced(ids[self.read - start])
        return Forced(None, self.session.locked_ids)

    def commit(self, upto: int) -> list[Event]:
        """Everything up to `upto` generated tokens is final; the events that may now be told."""
        self.committed = min(upto, self.read)
        if not (self._waiting or self._undone or self._answer_ids):
            return []
        self._undone = [undone for undone in self._undone if undone[0] > self.committed]
        ready = [told for told in self._waiting if told.at <= self.committed]
        self._waiting = [told for told in self._waiting if told.at > self.committed]
        released: list[Event] = []
        for told in ready:
            released.append(told.event(self.n_events))
            self.n_events += 1
        if self._answer_ids:
            self._look_through()
        return released

    def drop_drafts(self) -> None:
        """What was read and never committed was not generated."""
        if self.read > self.committed:
            self._rewind(self.committed)

    def closed(self) -> Closed:
        """The last event, after the request has ended."""
        session = self.session
        # The last token of a generation is never read, so one more of the hand-off may have been made.
        made = 0 if self.stop_at is None else min(len(self.handoff), self.read + 1 - self.stop_at)
        decision, shadow = session.machine.stopped, session.machine.shadow
        return Closed(
            self.identity,
            self.n_events,
            self.read,
            session.detector.position,
            made,
            str(session.stop_reason),
            Told.of(decision) if decision else None,
            Told.of(shadow) if shadow else None,
            self.uncontrolled,
            b"".join(kept for _, kept in self.token_rows) if self.token_rows else None,
        )

    def give_up(self, why: str) -> None:
        """Decide nothing more for this request (fail-open). A hand-off that has begun is finished."""
        self.failed, self.uncontrolled = True, self.uncontrolled or why

    def _withdraw(self, n: int, place: int) -> None:
        """Row `n` is not what was forced: thinking goes on, and what was forced before is part of it.

        Where the row is a draft, either a mask forbade the hand-off and the draft stands, or the draft will
        be refused and `_rewind` restores the stop.
        """
        assert self.stop_at is not None
        position = self.session.detector.position
        self._waiting.append(_Told(n, lambda number: Blocked(self.identity, number, position, MASKED)))
        self._undone.append((n, self.stop_at))
        self.stop_at = None
        self.session.withdraw()
        for forced in self.handoff[:place]:
            self.session.push(forced)

    def _rewind(self, n: int) -> None:
        """Take back everything after the first `n` generated tokens."""
        self._waiting = [told for told in self._waiting if told.at <= n]
        if self._answer_ids:
            del self._answer_ids[max(0, len(self._answer_ids) - (self.read - n)) :]
        while self._undone and n < self._undone[-1][0]:
            self.stop_at = self._undone.pop()[1]
            self.session.rewind(self.stop_at)
            self.session.reinstate()
        if self.stop_at is not None and self.stop_at > n:
            self.stop_at = None
        if self.stop_at is None:
            self.session.rewind(n)
        for kept in (self.rom_states, self.token_rows):
            while kept and kept[-1][0] > n:
                kept.pop()
        self.read = n

    def _look_through(self) -> None:
        """Find thinking that the answer opened again, where its tag is spelled by several tokens."""
        for token in self._answer_ids:
            self.session.deliver(token)
        self._answer_ids.clear()
        closing = self.session.closing_ids
        if closing:
            self._extra = (self.read, closing)
