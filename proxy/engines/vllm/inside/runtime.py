"""The plugin at work in one engine: rows of a step in, scores, decisions, forced tokens and events out.

Runs between the forward pass and the sampler, on the host, for either model runner. Knows no runner and no
socket. Fail-open: an error ends the control of the requests that it concerns, is counted and told, and vLLM
goes on serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from desist.controller import ModelProfile, StopReason
from desist.controller.core import Action, Control, Mode, Policy
from desist.controller.lexicon import lexicon
from desist.controller.vocabulary import Vocabulary
from desist.data.errors import ControlError
from desist.proxy.engines.vllm.identity import identity_of
from desist.proxy.engines.vllm.inside.attention import Attention
from desist.proxy.engines.vllm.inside.backlog import Backlog, Owed, may_wait
from desist.proxy.engines.vllm.inside.evidence import Judged, RowOf, Stream, hidden_of, scores_of
from desist.proxy.engines.vllm.inside.scoring import Scoring, TapRows
from desist.proxy.engines.vllm.inside.tracked import Forced, Reading, Request, Tracked
from desist.proxy.engines.vllm.params import AlphaPolicy, RequestControl, read_params
from desist.proxy.engines.vllm.wire import Event, Identity, StopNow

__all__ = ["Force", "Runtime"]

logger = logging.getLogger(__name__)


class Force(NamedTuple):
    """What the sampler must do at a row, which is found again by (slot, position)."""

    row: int
    slot: int
    position: int
    what: Forced


@dataclass(slots=True)
class Runtime:
    """One engine's plugin. `sinks` get the events of each step, in the thread that runs it."""

    profile: ModelProfile
    vocabulary: Vocabulary
    scoring: Scoring
    certificates: Sequence[AlphaPolicy] = ()
    stream: Stream = field(default_factory=Stream)
    min_answer_tokens: int = 256
    score_here: bool = True
    outside: bool = True
    cap: Mode = "active"
    sinks: list[Callable[[Sequence[Event]], None]] = field(default_factory=list)
    forces: list[Force] = field(default_factory=list)
    errors: int = 0
    tracked: dict[str, Tracked] = field(default_factory=dict)
    _identities: dict[Identity, str] = field(default_factory=dict)
    _events: list[Event] = field(default_factory=list)
    _backlog: Backlog = field(default_factory=Backlog)
    attention: Attention = field(init=False)

    def __post_init__(self) -> None:
        self.attention = Attention(lexicon(self.profile, self.vocabulary))

    def entered(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        max_tokens: int | None,
        extra_args: Mapping[str, Any] | None,
        *,
        structured: bool = False,
    ) -> None:
        """A request was scheduled for the first time (or again, after a preemption: then it is known)."""
        known = self.tracked.get(request_id)
        if known is not None and known.request.prompt_ids == tuple(prompt_ids):
            return
        asked = read_params(extra_args)
        if asked is None:
            return
        self.left([request_id])
        control, why = self._control(asked)
        one = Tracked.of(
            Request(request_id, tuple(prompt_ids), max_tokens, structured),
            identity_of(request_id, asked.key or request_id, self._identities.__contains__),
            self.profile,
            self.vocabulary,
            control,
            min_answer_tokens=asked.min_answer_tokens or self.min_answer_tokens,
            uncontrolled=why,
        )
        one.scoring = self.scoring
        self.tracked[request_id] = one
        one.session.cap(self.cap)  # after it is tracked: another thread may lower the cap at any time
        self._identities[one.identity] = request_id
        one.begin()
        self._attend(one)
        self._events += [one.opened(), *one.commit(0)]

    def left(
        self, request_ids: Iterable[str], generated: Callable[[str], Sequence[int]] = lambda _: ()
    ) -> None:
        """Requests have ended: answered, cut or aborted. `generated`: all their ids, where rows are skipped.

        The newest id was never read: its row would have come in the next step.
        """
        gone = {name: self.tracked[name] for name in request_ids if name in self.tracked}
        if self._backlog.owes(gone.values()):
            self._score_backlog()
        for request_id, one in gone.items():
            del self.tracked[request_id]
            self.attention.ignore(request_id)
            one.drop_drafts()
            one.catch_up(generated(request_id)[one.read : -1])
            self._identities.pop(one.identity, None)
            self._events += [*one.commit(one.committed), one.closed()]

    def step(self, rows: Sequence[RowOf], taps: TapRows) -> None:
        """Score, decide and force for one step. Without drafts everything is committed at once."""
        self.forces = []
        waves = _waves(rows)
        if len(waves) > 1 and self._backlog.owes(self.tracked.values()):
            self._score_backlog()  # with drafts nothing is put off, and boundaries are decided in order
        for wave in waves:
            self._wave(wave, taps, final=len(waves) == 1)
        self.tick()

    def tick(self) -> None:
        """A step is over, be it one in which no row mattered."""
        if self._backlog.tick():
            self._score_backlog()
        self.flush()

    def commit(self, request_id: str, tokens: int) -> None:
        """The sampler took the rows of a request up to `tokens` generated ones; the others are void."""
        one = self.tracked.get(request_id)
        if one is not None:
            self._events += one.commit(tokens)

    def flush(self) -> None:
        """Hand the events so far to the sinks."""
        if self._events:
            events, self._events = self._events, []
            for sink in self.sinks:
                with self.guarded("an event sink"):
                    sink(events)

    def limit(self, cap: Mode) -> None:
        """The kill switch: no request may use a higher mode from now on. Raising it is for new requests."""
        self.cap = cap
        self._score_backlog()
        for one in list(self.tracked.values()):
            one.session.cap(cap)
            self._attend(one)

    def stop_now(self, command: StopNow) -> int:
        """Ask for a stop from outside; how many running choices it concerns."""
        manual = StopReason(command.reason) is StopReason.MANUAL
        asked = [
            one
            for one in self.tracked.values()
            if (one.identity == command.identity if command.identity else one.identity.key == command.key)
        ]
        if self._backlog.owes(asked):
            self._score_backlog()
        for one in asked:
            if manual or one.mode == "active":
                one.stop_now(command)
                self._attend(one)
        return len(asked)

    @contextmanager
    def guarded(self, what: str, concerned: Iterable[Tracked] = ()) -> Iterator[None]:
        """Errors inside end the control of the requests concerned, and nothing else."""
        try:
            yield
        except Exception as error:
            self._failed(what, error, concerned)

    def _failed(self, what: str, error: Exception, concerned: Iterable[Tracked]) -> None:
        self.errors += 1
        if self.errors <= 10 or self.errors % 1000 == 0:
            logger.error("desist: %s failed (error %d); serving goes on", what, self.errors, exc_info=error)
        for one in concerned:
            one.give_up(f"{what} failed: {type(error).__name__}: {error}"[:200])

    def _control(self, asked: RequestControl) -> tuple[Control, str | None]:
        """The control of a request, and why its scores decide nothing, if so."""
        try:
            control = asked.control(self.certificates)
        except ControlError as error:  # the frontend refuses these; its certificates may have been newer
            return replace(asked.asked, policy=Policy()), str(error)
        scorer = control.policy.scorer
        idle = control.policy.lam is None or control.mode == "off" or not self.score_here
        if idle or scorer in self.scoring.names:
            return control, None
        return control, f"the policy decides by scorer '{scorer}', which this engine does not compute"

    def _wave(self, rows: Sequence[RowOf], taps: TapRows, *, final: bool) -> None:
        """At most one row of each request."""
        reasoning: list[Judged] = []
        seen: list[tuple[RowOf, Tracked]] = []
        for row in rows:
            self.attention.seen(row.request_id)
            one = self.tracked.get(row.request_id)
            if one is None:
                continue
            if not one.is_news(row.position):
                if (first := one.first_forced(row.position)) is not None:
                    self.forces.append(Force(row.row, row.slot, row.position, first))
                continue
            try:
                reading = one.take(row.position, row.token, row.missed)
            except Exception as error:
                self._failed("reading a token", error, (one,))
                continue
            seen.append((row, one))
            if reading is not None and self._matters(one, reading):
                reasoning.append(Judged(row, one, reading))
        if final and self.score_here:
            reasoning = self._put_off(reasoning, taps)
        if reasoning:
            scores = scores_of(reasoning, taps, self.guarded) if self.score_here else {}
            hidden = hidden_of(reasoning, taps, self.stream, self.guarded)
            for row, one, reading in reasoning:
                with self.guarded("deciding", (one,)):
                    self._decide(one, reading, scores.get(row.row, {}), hidden.get(row.row))
        for row, one in seen:
            self._attend(one)
            if final:
                self._events += one.commit(one.read)
            what = one.forced()
            if what.token is not None or what.locked:
                self.forces.append(Force(row.row, row.slot, row.position, what))

    def _matters(self, one: Tracked, reading: Reading) -> bool:
        """Whether anything is to be read or decided at this row: most tokens are plain words."""
        if reading.boundary is not None or self._reads_all(one):
            return True
        return one.session.machine.watches(one.session.detector.position)

    def _reads_all(self, one: Tracked) -> bool:
        """Whether each token of a request is scored, or its hidden state kept."""
        if self.stream.token_layer is not None:
            return True
        return one.scoring.streams and self.score_here and one.mode != "off"

    def _attend(self, one: Tracked) -> None:
        """Say which of a request's next rows must be looked at."""
        if one.stop_at is None and (one.idle or one.failed):
            self.attention.ignore(one.request.request_id)
        else:
            rows = 0 if self._reads_all(one) else one.rows_until_due
            self.attention.follow(one.request.request_id, rows)

    def _put_off(self, reasoning: Sequence[Judged], taps: TapRows) -> list[Judged]:
        """Move boundaries that may wait for their scores to the backlog; those that are left."""
        waiting: dict[Scoring, list[Judged]] = {}
        left: list[Judged] = []
        for each in reasoning:
            (waiting.setdefault(each.one.scoring, []) if self._may_wait(each) else left).append(each)
        for scoring, part in waiting.items():
            with self.guarded("keeping hidden states", [each.one for each in part]):
                owed = [
                    Owed(one, reading.boundary, one.read, one.session.detector.held)
                    for _, one, reading in part
                    if reading.boundary is not None
                ]
                self._backlog.add(scoring, owed, taps, [each.row.row for each in part])
        return left

    def _may_wait(self, each: Judged) -> bool:
        return (
            each.reading.boundary is not None
            and self.stream.dtype is None
            and self.stream.token_layer is None
            and each.one.scoring.judges_boundaries
            and may_wait(each.one)
        )

    def _score_backlog(self) -> None:
        """Score the boundaries that waited, and decide at them as if it were then."""
        for scoring, owed, read in self._backlog.take():
            found: list[float | None] = [None] * len(owed)
            with self.guarded("the probe", [each.one for each in owed]):
                found = [*scoring.scores_of_rows(*read)]
            for each, score in zip(owed, found, strict=True):
                with self.guarded("deciding", (each.one,)):
                    self._decide_late(each, {} if score is None else {"probe": score})

    def _decide_late(self, owed: Owed, scores: Mapping[str, float]) -> None:
        one, boundary, read, held = owed
        decision = one.session.decide_late(boundary, scores, held=held)
        one.tell_boundary(boundary, scores, decision, tokens=read, held=held)
        self._events += one.commit(one.committed)

    def _decide(
        self, one: Tracked, reading: Reading, scores: Mapping[str, float], hidden: bytes | None
    ) -> None:
        if one.failed:
            return
        boundary = reading.boundary
        decision = one.decide(boundary, scores)
        if boundary is not None:
            one.tell_boundary(boundary, scores, decision, hidden, self.stream.dtype if hidden else None)
        if decision.action is Action.STOP:
            one.tell_stop(decision)


def _waves(rows: Sequence[RowOf]) -> list[list[RowOf]]:
    """The rows in groups that hold at most one row of each request, in order of position."""
    waves: list[list[RowOf]] = []
    depth: dict[str, int] = {}
    for row in rows:
        place = depth.get(row.request_id, 0)
        depth[row.request_id] = place + 1
        if place == len(waves):
            waves.append([])
        waves[place].append(row)
    return waves
