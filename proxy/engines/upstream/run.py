"""One generation over one or two upstream calls: chunks in, deltas and the end event out.

Knows where thinking stands, when the budget cuts it and what was counted. Does not talk to anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from desist.controller.core import Action, Decision, StopReason
from desist.controller.machine import StopMachine
from desist.controller.profile import ModelProfile
from desist.data.errors import EngineError, UpstreamError
from desist.proxy.engines.base import Delta, Finished, GenerationRequest, Usage
from desist.proxy.engines.upstream.bodies import estimated_tokens, split_handoff
from desist.proxy.engines.upstream.counts import TokenCounts
from desist.proxy.engines.upstream.cut import TextCutter
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.reasoning import Piece, ThinkSplitter
from desist.proxy.settings import UpstreamSettings

__all__ = ["UpstreamRun"]


class UpstreamRun:
    """One generation over one or two upstream calls."""

    def __init__(
        self, request: GenerationRequest, settings: UpstreamSettings, profile: ModelProfile, min_answer: int
    ) -> None:
        self._request, self._profile = request, profile
        self._chars_per_token = settings.chars_per_token
        self._told, self._opening = split_handoff(profile, request)
        self._handoff_tokens = estimated_tokens(
            profile.handoff(request.control.answer), settings.chars_per_token
        )
        chat = request.messages is not None
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        self.opened_by_prompt = not chat and prompt.rstrip().endswith(profile.think_open)
        opened = self.opened_by_prompt or (chat and settings.thinking_opened_by_template)
        thinks = request.template.get("enable_thinking") is not False
        # A text completion that nobody asked to control stays as it is, tags included.
        raw = not chat and request.control.mode == "off" and request.control.budget is None
        self._splitter = None if raw else self._new_splitter(opened=opened and thinks)
        self._counts, self._second_counts = (
            TokenCounts(self._chars_per_token),
            TokenCounts(self._chars_per_token),
        )
        self._tail = self._new_splitter(closed=True)
        self._cutter = self._new_cutter(min_answer) if thinks else None
        self.uncontrolled: str | None = None
        if self._cutter is not None and not chat and not isinstance(request.prompt, str):
            self._cutter = None
            self.uncontrolled = "a prompt of token ids cannot be continued as text: send a text prompt"
        self.closed_at_once = self._cutter is not None and request.control.budget == 0 and (chat or opened)
        self._saw_reasoning = self._saw_content = False
        self._finish: str | None = None
        self._extra: dict[str, Any] = {}
        self._depth = 1  # of braces, in an extracted answer
        self._whole_answer = request.control.answer == "write"
        self.answered = False

    def _new_splitter(self, *, opened: bool = False, closed: bool = False) -> ThinkSplitter:
        profile = self._profile
        return ThinkSplitter(
            profile.think_open, profile.think_close, profile.tool_call_open, opened=opened, closed=closed
        )

    def _new_cutter(self, min_answer: int) -> TextCutter | None:
        machine = StopMachine(
            self._request.control,
            max_tokens=self._request.sampling.max_tokens,
            min_answer_tokens=min_answer,
            handoff_tokens=self._handoff_tokens,
        )
        if machine.soft_limit is None or machine.hard_limit is None:
            return None
        return TextCutter(machine.soft_limit, machine.hard_limit, self._profile.cues)

    @property
    def counts_needed(self) -> bool:
        return self._cutter is not None

    @property
    def stopped(self) -> bool:
        return self.closed_at_once or (self._cutter is not None and self._cutter.cut is not None)

    @property
    def kept(self) -> str:
        return self._cutter.kept if self._cutter else ""

    @property
    def used_tokens(self) -> int:
        return self._counts.generated + self._handoff_tokens

    def first(self, chunk: Chunk) -> Iterator[Delta]:
        """Deltas of a chunk of the first call."""
        total = self._counts.read(chunk)
        self._note(chunk)
        if chunk.reasoning and self._splitter is not None:
            pieces = self._splitter.finish()
            self._splitter = None  # the server parses thinking itself: tags in its content are text
            yield from self._show(pieces, total, chunk)
        pieces = [Piece("reasoning", chunk.reasoning)] if chunk.reasoning else []
        if chunk.content:
            plain = [Piece("content", chunk.content)]
            pieces += plain if self._splitter is None else self._splitter.feed(chunk.content)
        yield from self._show(pieces, total, chunk)
        yield from self._handed_on(chunk)

    def first_end(self) -> Iterator[Delta]:
        """What was held back, when the first call has ended by itself."""
        pieces = self._splitter.finish() if self._splitter else []
        yield from self._show(pieces, self._counts.generated, None)
        yield from self._flushed()
        if self._finish is None:
            raise UpstreamError(
                "the upstream ended its stream without a finish_reason. Look at its log.", 502
            )

    def handoff(self) -> Iterator[Delta]:
        """The hand-off as the client sees it: the closing sentence, and the opened answer form."""
        at_space = not self.kept or self.kept[-1].isspace()
        if told := self._told.lstrip() if at_space else self._told:
            yield Delta("reasoning", told)
        if self._opening:
            yield Delta("content", self._opening)

    def second(self, chunk: Chunk) -> Iterator[Delta]:
        """Deltas of a chunk of the continuation, whose answer some servers call reasoning."""
        self._second_counts.read(chunk)
        self._note(chunk)
        pieces = self._tail.feed(chunk.reasoning + chunk.content)
        yield from self._answer(pieces)
        yield from self._handed_on(chunk)

    def second_end(self) -> Iterator[Delta]:
        yield from self._answer(self._tail.finish())
        if not self._whole_answer and not self.answered and self._finish != "length":
            yield Delta("content", self._profile.extract_suffix)
        if self._finish is None and not self.answered:
            raise UpstreamError(
                "the upstream ended the continuation without a finish_reason. Look at its log.", 502
            )

    def finished(self) -> Finished:
        """The end event. Raises `EngineError` if called before the end."""
        if not self.stopped:
            return self._finished_alone()
        cut = self._cutter.cut if self._cutter else None
        position, rewound = (cut.position, cut.rewound) if cut else (0, 0)
        reasoning, answer = self._second_counts.split()
        prompt = self._counts.prompt
        if prompt is None:  # the first call was left before it told; the second one has read all of it
            prompt = max(0, (self._second_counts.prompt or 0) - position - self._handoff_tokens)
        usage = Usage(prompt, position, reasoning + answer, self._handoff_tokens, rewound)
        decision = Decision(Action.STOP, StopReason.BUDGET, position)
        return Finished(self._finish or "stop", StopReason.BUDGET, usage, decision, extra=self._extra or None)

    def _finished_alone(self) -> Finished:
        if self._finish is None:
            raise EngineError(
                "asked for the end of a generation that goes on. This is a fault of the engine."
            )
        reasoning, answer = self._counts.split()
        reason = StopReason.NONE
        if self._saw_reasoning:
            cut_short = self._finish == "length" and not self._saw_content
            reason = StopReason.LENGTH if cut_short else StopReason.NATURAL
        usage = Usage(self._counts.prompt or 0, reasoning, answer)
        return Finished(
            self._finish, reason, usage, uncontrolled=self.uncontrolled, extra=self._extra or None
        )

    def _show(self, pieces: list[Piece], total: int, chunk: Chunk | None) -> Iterator[Delta]:
        ids = chunk.token_ids if chunk is not None and len(pieces) == 1 else ()
        for piece in pieces:
            if piece.channel == "content":
                yield from self._flushed()
                self._saw_content = True
                yield Delta("content", piece.text, ids)
                continue
            self._saw_reasoning = True
            self._counts.reasoned(piece.text, alone=len(pieces) == 1)
            text = piece.text if self._cutter is None else self._cutter.push(piece.text, total)
            if text:
                yield Delta("reasoning", text, ids if text == piece.text else ())
            if self.stopped:
                return

    def _flushed(self) -> Iterator[Delta]:
        if self._cutter is not None and (text := self._cutter.flush()):
            yield Delta("reasoning", text)

    def _answer(self, pieces: list[Piece]) -> Iterator[Delta]:
        for piece in pieces:
            text = piece.text
            if piece.channel == "content" and not self._whole_answer:
                text = self._to_closing_brace(text)
            if text:
                yield Delta(piece.channel, text)
            if self.answered:
                return

    def _to_closing_brace(self, text: str) -> str:
        """The text up to the brace that closes the answer form, which ends the generation."""
        for place, character in enumerate(text):
            self._depth += (character == "{") - (character == "}")
            if self._depth == 0:
                self.answered = True
                return text[: place + 1]
        return text

    def _note(self, chunk: Chunk) -> None:
        self._finish = chunk.finish_reason or self._finish
        self._extra |= chunk.extra

    @staticmethod
    def _handed_on(chunk: Chunk) -> Iterator[Delta]:
        if chunk.delta_extra or chunk.choice_extra:
            yield Delta(
                "content", "", extra=chunk.delta_extra or None, choice_extra=chunk.choice_extra or None
            )
