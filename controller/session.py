"""One live generation: detector and stop machine together, as engines drive them.

Knows ids, scores and decisions. The engine generates, scores and forces tokens; the session tells it
when. Per token: `push`, then `decide`; after a stop: force `handoff_ids`, then pass each answer token
through `deliver`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from desist.controller.boundaries import BoundaryDetector
from desist.controller.core import Action, AnswerMode, Boundary, Control, Decision, Mode, StopReason
from desist.controller.machine import StopMachine, answer_reserve
from desist.controller.profile import ModelProfile
from desist.controller.vocabulary import Vocabulary
from desist.data.errors import ControlError

__all__ = ["Scored", "Session"]


@dataclass(frozen=True, slots=True)
class Scored:
    """What happened at one boundary."""

    boundary: Boundary
    scores: Mapping[str, float]
    decision: Decision


class Session:
    """The controller of one generation.

    `max_tokens` counts everything generated: reasoning, hand-off and answer. Raises `ControlError` for a
    profile that writes channels.
    """

    def __init__(
        self,
        profile: ModelProfile,
        vocabulary: Vocabulary,
        control: Control,
        prompt_ids: Sequence[int],
        max_tokens: int | None = None,
        *,
        min_answer_tokens: int = 256,
    ) -> None:
        if profile.style == "harmony":
            raise ControlError(
                f"profile '{profile.name}' writes channels (harmony), and a hand-off between channels cannot "
                "be forced token by token. Serve the model with its own server and give desist --upstream."
            )
        self.profile = profile
        self.control = control
        self.detector = BoundaryDetector.from_prompt(profile, vocabulary, prompt_ids)
        self._vocabulary = vocabulary
        self._handoffs: dict[AnswerMode, tuple[int, ...]] = {}
        opening = () if self.detector.thinking else vocabulary.encode(profile.think_open)
        self._shorten(max_tokens, min_answer_tokens, len(opening))
        self.machine = StopMachine(
            control,
            max_tokens=max_tokens,
            min_answer_tokens=min_answer_tokens,
            handoff_tokens=len(self.handoff_ids()) + len(opening),
        )
        self.scored: list[Scored] = []
        self._tags = _AnswerTags(profile, vocabulary)

    def _shorten(self, max_tokens: int | None, min_answer_tokens: int, opening: int) -> None:
        """Where the hand-off would leave no token for the answer, it is the bare tag that closes thinking."""
        if max_tokens is None or self.control.answer != "write":
            return
        needed = opening + len(self.handoff_ids()) + answer_reserve(max_tokens, min_answer_tokens)
        if max_tokens < needed:
            self._handoffs["write"] = self._vocabulary.encode(self.profile.think_close)

    @property
    def thinking(self) -> bool:
        """Whether the next token is reasoning: open, and not stopped."""
        return self.detector.thinking and self.machine.stopped is None

    @property
    def stop_reason(self) -> StopReason:
        """Why thinking ended; `none` while it has not (an engine at its cap says `length` itself)."""
        if self.machine.stopped is not None:
            return self.machine.stopped.reason
        return StopReason.NATURAL if self.detector.closed and not self.thinking else StopReason.NONE

    def push(self, token_id: int) -> Boundary | None:
        """Read one sampled token; the boundary it completes. Not for forced or answer tokens."""
        return self.detector.push(token_id)

    def skip(self, token_ids: Sequence[int]) -> None:
        """Read tokens that say nothing (see `Lexicon.says_nothing`): nothing is decided at them."""
        self.detector.skip(token_ids)

    def decide_late(self, boundary: Boundary, scores: Mapping[str, float], *, held: bool) -> Decision:
        """Decide at a boundary that was passed before its score was there, and where nothing could stop.

        `held`: whether a hold-off zone was open there.
        """
        return self._at_boundary(boundary, scores, held)

    def decide(
        self,
        boundary: Boundary | None,
        scores: Mapping[str, float] | None = None,
        *,
        held: bool | None = None,
    ) -> Decision:
        """Decide after the token just pushed. A policy whose scorer is not in `scores` has no evidence.

        `held`: whether a hold-off zone counts as open, where that is not what the text says (a device that
        was not told in time).
        """
        detector, machine = self.detector, self.machine
        if machine.stopped is None and not detector.thinking:
            return Decision(Action.CONTINUE, StopReason.NONE, detector.position)
        if boundary is None:
            if machine.stopped is None and not machine.watches(detector.position):
                return Decision(Action.CONTINUE, StopReason.NONE, detector.position)
            held = detector.held if held is None else held
            return machine.advance(detector.position, held=held, whole=detector.whole)
        return self._at_boundary(boundary, scores or {}, detector.held if held is None else held)

    def _at_boundary(self, boundary: Boundary, scores: Mapping[str, float], held: bool) -> Decision:
        scores = dict(scores)
        score = scores.get(self.control.policy.scorer)
        decision = self.machine.at_boundary(boundary, score, held=held)
        if not self.scored or self.scored[-1].boundary.position < boundary.position:
            self.scored.append(Scored(boundary, scores, decision))
        return decision

    def stop_now(
        self,
        reason: StopReason = StopReason.MANUAL,
        *,
        index: int | None = None,
        score: float | None = None,
        certified: bool = False,
    ) -> None:
        """Ask for a stop from outside; the next `decide` outside a hold-off zone stops."""
        self.machine.stop_now(
            reason, index=index, score=score, certified=certified, position=self.detector.position
        )

    def withdraw(self) -> None:
        """The engine could not carry the stop out: thinking goes on, the next boundary is decided anew."""
        stopped = self.machine.stopped
        self.machine.withdraw()
        self._mark(stopped, Action.HOLD)

    def reinstate(self) -> None:
        """The stop stands after all. Call `rewind` to its token before."""
        self.machine.reinstate()
        self._mark(self.machine.stopped, Action.STOP)

    def _mark(self, stop: Decision | None, action: Action) -> None:
        """Write what became of a stop into the boundary that it was taken at, if it was one."""
        last = self.scored[-1] if self.scored else None
        if stop is not None and last is not None and last.boundary.position == stop.position:
            self.scored[-1] = replace(last, decision=replace(stop, action=action))

    def cap(self, mode: Mode) -> None:
        """Lower the mode to at most `mode` from now on (the operator's kill switch). Never raises it."""
        self.machine.cap(mode)
        self.control = self.machine.control

    def rewind(self, tokens: int) -> None:
        """Keep only the first `tokens` pushed tokens (rejected drafts)."""
        self.detector.rewind(tokens)
        position = self.detector.position
        self.machine.rewind(position)
        while self.scored and self.scored[-1].boundary.position > position:
            self.scored.pop()

    def handoff_ids(self, answer: AnswerMode | None = None) -> tuple[int, ...]:
        """Ids to be forced after a stop, for the request's answer mode unless another is given."""
        mode = answer or self.control.answer
        if mode not in self._handoffs:
            self._handoffs[mode] = self._vocabulary.encode(self.profile.handoff(mode))
        return self._handoffs[mode]

    @property
    def locked_ids(self) -> frozenset[int]:
        """Ids an engine may mask after a stop, so that thinking cannot be opened again."""
        opened = self._vocabulary.special_id(self.profile.think_open)
        return frozenset() if opened is None else frozenset({opened})

    def swallow(self, token_id: int) -> bool:
        """After a stop: whether this sampled token must not reach the reader (a tag, re-opened thought).

        Exact where the tags are added tokens. Where a tag is spelled by several tokens use `deliver`,
        which can hold tokens back until it is clear what they spell. Call one of the two, not both.
        """
        return token_id not in self._tags.read(token_id)

    def deliver(self, token_id: int) -> tuple[int, ...]:
        """After a stop: the ids that may be delivered now, in order. See also `flush`."""
        return self._tags.read(token_id)

    def flush(self) -> tuple[int, ...]:
        """Ids held back that turned out to be no tag: call when the generation ends."""
        return self._tags.flush()

    @property
    def closing_ids(self) -> tuple[int, ...]:
        """Ids to be forced at once because the answer re-opened thinking; empty if it did not.

        Forced ids are not passed to `swallow` or `deliver`.
        """
        return self._tags.take_closing()


class _AnswerTags:
    """Takes tags out of an answer: a second close tag, a re-opened thinking block.

    A tag that is an added token counts wherever it stands. One that tokens spell counts only before the first
    text of the answer, as for the parser: later it may be quoted.
    """

    def __init__(self, profile: ModelProfile, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._open, self._close = profile.think_open, profile.think_close
        tags = {tag: vocabulary.special_id(tag) for tag in (self._open, self._close)}
        self._ids = {token_id: tag for tag, token_id in tags.items() if token_id is not None}
        self._texts = {tag.encode(): tag for tag, token_id in tags.items() if token_id is None}
        self._held: list[int] = []
        self._closing = self._begun = False

    def read(self, token_id: int) -> tuple[int, ...]:
        tag = self._ids.get(token_id)
        if tag is not None:
            self._closing = self._closing or tag == self._open
            return self.flush()
        self._held.append(token_id)
        return self._release() if self._texts and not self._begun else self.flush()

    def flush(self) -> tuple[int, ...]:
        released, self._held = tuple(self._held), []
        return released

    def take_closing(self) -> tuple[int, ...]:
        closing, self._closing = self._closing, False
        return self._vocabulary.encode(self._close) if closing else ()

    def _release(self) -> tuple[int, ...]:
        """Drop tokens that spell a tag; release those that can no longer be part of one."""
        text = b"".join(map(self._vocabulary.token_bytes, self._held))
        body = text.lstrip()
        found = min(
            ((text.find(data), tag) for data, tag in self._texts.items() if body.startswith(data)),
            default=None,
        )
        if found is not None:
            self._closing = self._closing or found[1] == self._open
            released = self._before(found[0])
            self._held = []
            return released
        if any(data.startswith(body) for data in self._texts):
            return ()
        self._begun = True
        return self.flush()

    def _before(self, place: int) -> tuple[int, ...]:
        """The held tokens that end at or before a byte of their joined text."""
        at, kept = 0, 0
        for token_id in self._held:
            at += len(self._vocabulary.token_bytes(token_id))
            if at > place:
                break
            kept += 1
        return tuple(self._held[:kept])
