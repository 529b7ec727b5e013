"""One generation as vLLM streams it: chunks in, deltas out, and what was counted on the way.

Knows texts, ids and the answer form; whether thinking was stopped it is told. Talks to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from desist.controller import ModelProfile, StopReason
from desist.data.errors import UpstreamError
from desist.proxy.answering.answer_form import AnswerForm
from desist.proxy.engines.base import Delta, GenerationRequest
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.counts import TokenCounts
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.engines.vllm.beside.bodies import is_controlled, wants_ids
from desist.proxy.engines.vllm.beside.split import ThoughtSplit
from desist.proxy.engines.vllm.config import PARSER
from desist.proxy.reasoning import Piece

__all__ = ["VllmRun"]

_CHARS_PER_TOKEN = 4.0  # where the server hides ids and counts


class VllmRun:
    """One generation. `stopped` tells whether its thinking was stopped.

    `parser`: the server's reasoning parser, empty without one. `bound`: a grammar rules the whole text, so
    that nothing in it is thinking.
    `template_opens`: the chat template opens thinking; asked only where the prompt's ids do not tell.
    `answered`: the extracted answer is complete, the stream may be left. `extra`: fields of the whole
    response for the client.
    """

    def __init__(
        self,
        request: GenerationRequest,
        profile: ModelProfile,
        facts: ModelFacts | None,
        stopped: Callable[[], bool],
        *,
        template_opens: bool = False,
        parser: str = "",
        bound: bool = False,
    ) -> None:
        self._request, self._profile, self._stopped = request, profile, stopped
        self._wants_ids = wants_ids(request)
        chat = request.messages is not None
        # A text completion that nobody asked to control stays as it is, tags included.
        raw = bound or bool(request.body.get("echo")) or (not chat and not is_controlled(request.control))
        ours = chat and parser.startswith(PARSER)  # which has tags written into the text, to take them out
        self._split = ThoughtSplit(
            profile,
            facts,
            raw=raw,
            opened=_opened(request, profile, template_opens),
            shows_special=ours or request.body.get("skip_special_tokens") is False,
            parses=chat and bool(parser),
            may_hide=request.body.get("include_reasoning") is False,
        )
        self._counts = TokenCounts(_CHARS_PER_TOKEN)
        self._ids: list[int] = []
        self.prompt_ids: tuple[int, ...] = ()
        self._stop_reason: Any = None  # what vLLM says met its end: a stop string, a token id, or nothing
        self._blank, self._called = True, False
        self._form = AnswerForm(profile.extract_suffix) if request.control.answer == "extract" else None
        self._answer, self._shown = "", 0
        self._saw_reasoning = self._saw_content = False
        self._finish: str | None = None
        self.answered = False
        self.extra: dict[str, Any] = {}

    def feed(self, chunk: Chunk) -> Iterator[Delta]:
        """The deltas of a chunk."""
        self._counts.read(chunk)
        if chunk.token_ids:
            self._ids += chunk.token_ids
        if chunk.prompt_ids:
            self.prompt_ids = chunk.prompt_ids
        self._finish = chunk.finish_reason or self._finish
        extra = dict(chunk.extra)
        if not self._wants_ids:
            extra.pop("prompt_token_ids", None)
        self.extra |= extra
        yield from self._show(self._split.feed(chunk, stopped=self._stopped()), chunk)
        choice_extra = dict(chunk.choice_extra)
        if chunk.finish_reason:
            self._stop_reason = choice_extra.get("stop_reason")
        if "tool_calls" in chunk.delta_extra or "function_call" in chunk.delta_extra:
            self._called = True
        if self._wants_ids and chunk.token_ids:
            choice_extra["token_ids"] = list(chunk.token_ids)
        if self._wants_ids and chunk.prompt_ids and self._request.messages is None:
            choice_extra["prompt_token_ids"] = list(chunk.prompt_ids)
        if chunk.delta_extra or choice_extra:
            yield Delta("content", "", extra=chunk.delta_extra or None, choice_extra=choice_extra or None)

    def finish(self) -> Iterator[Delta]:
        """What was held back, when the stream has ended. Raises `UpstreamError` where it broke off."""
        if self._finish is None and not self.answered:
            raise UpstreamError("vLLM ended its stream without a finish_reason. Look at its log.", 502)
        if not self.answered:
            yield from self._show(self._split.finish(stopped=self._stopped()), None)

    @property
    def finish_reason(self) -> str:
        return "stop" if self.answered else self._finish or "stop"

    @property
    def prompt_tokens(self) -> int | None:
        return self._counts.prompt

    @property
    def generated(self) -> int:
        """Tokens generated, as far as vLLM told: its final count, or the ids that came."""
        return len(self._ids) if self.answered and self._ids else self._counts.total

    @property
    def reasoning(self) -> int:
        """Reasoning tokens by ids, else by vLLM's own count; a hand-off's are among them."""
        by_ids = self._split.n_reasoning
        return by_ids if by_ids is not None and self._ids else self._counts.split()[0]

    @property
    def ids(self) -> tuple[int, ...]:
        """What was generated, as far as vLLM told."""
        return tuple(self._ids)

    @property
    def stop_token(self) -> int | None:
        """The token that vLLM ended at, where it is neither the model's own end nor told."""
        return self._stop_reason if isinstance(self._stop_reason, int) else None

    @property
    def may_owe(self) -> bool:
        """Whether the model ended its turn without an answer, although thinking was to be controlled."""
        request = self._request
        if self._finish != "stop" or self.answered or self._called or not self._blank:
            return False
        control = request.control
        if (control.mode != "active" and control.budget is None) or request.body.get("echo"):
            return False
        asked = request.body.get("stop_token_ids") or ()  # where the client itself wanted to end
        return not isinstance(self._stop_reason, str) and self._stop_reason not in asked

    @property
    def stop_reason(self) -> StopReason:
        """Why thinking ended, by the text alone."""
        if not self._saw_reasoning:
            return StopReason.NONE
        cut_short = self._finish == "length" and not self._saw_content
        return StopReason.LENGTH if cut_short else StopReason.NATURAL

    def _show(self, pieces: list[Piece], chunk: Chunk | None) -> Iterator[Delta]:
        ids = chunk.token_ids if chunk is not None and len(pieces) == 1 else ()
        for channel, text in pieces:
            if channel == "reasoning":
                self._saw_reasoning = True
                self._counts.reasoned(text, alone=len(pieces) == 1)
                yield Delta("reasoning", text, ids)
                continue
            self._saw_content = True
            self._blank = self._blank and not text.strip()
            shown = text if self._form is None else self._up_to_form(text)
            if shown:
                yield Delta("content", shown, ids if shown == text else ())
            if self.answered:
                return

    def _up_to_form(self, text: str) -> str:
        """The part of new answer text up to the end of the answer form, which ends the generation."""
        assert self._form is not None
        self._answer += text
        if not self._stopped():
            self._shown = len(self._answer)
            return text
        opening = self._profile.answer_opening("extract")
        start = len(self._answer) - len(self._answer.lstrip()) + len(opening)
        end = self._form.end(self._answer[start:]) if self._answer.lstrip().startswith(opening) else None
        self.answered = end is not None
        before, self._shown = self._shown, len(self._answer)
        return self._answer[before : self._shown if end is None else max(before, start + end)]


def _opened(request: GenerationRequest, profile: ModelProfile, template_opens: bool) -> bool:
    """Whether the prompt opens thinking, as far as its text tells."""
    if request.messages is not None:
        return template_opens and request.template.get("enable_thinking") is not False
    return isinstance(request.prompt, str) and request.prompt.rstrip().endswith(profile.think_open)
