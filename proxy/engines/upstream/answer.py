"""The second call of a generation: the answer after thinking was closed.

Reads a text completion as a chat's answer where the first call was one (tags, tool calls, log
probabilities), and puts the counts of both calls together. Knows nothing of how thinking was closed.
Talks to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from desist.controller.core import Decision, StopReason
from desist.data.errors import UpstreamError
from desist.proxy.answering.answer_form import AnswerForm
from desist.proxy.engines.base import Delta, Finished, Usage
from desist.proxy.engines.upstream.bodies import split_handoff
from desist.proxy.engines.upstream.calls import CallParser
from desist.proxy.engines.upstream.counts import TokenCounts
from desist.proxy.engines.upstream.plan import parses_calls
from desist.proxy.engines.upstream.probabilities import as_chat
from desist.proxy.engines.upstream.run import UpstreamRun, estimated_prompt
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.reasoning import Piece, ThinkSplitter

__all__ = ["Answer", "Way"]

Way = Literal["ids", "message", "text"]


class Answer:
    """One try of the second call. `prompt_tokens`: of its prompt, where they are known beforehand.

    `handoff_tokens`: those of the hand-off (None: estimated). `closes`: thinking that is opened again can be
    closed at once, by leaving this try for another one; else it is shown as what it is. `wasted`: tokens of
    the tries that were left so. `answered`: the extracted answer is complete, so that the stream may be left;
    `reopened`: it must be, and nothing of it was shown.
    """

    def __init__(
        self,
        run: UpstreamRun,
        way: Way,
        chars_per_token: float,
        *,
        prompt_tokens: int | None = None,
        handoff_tokens: int | None = None,
        closes: bool = False,
        wasted: int = 0,
    ) -> None:
        self._run, self._way, self._closes, self._wasted = run, way, closes, wasted
        self._prompt_tokens, self._handoff_tokens = prompt_tokens, handoff_tokens
        self._chars_per_token = chars_per_token
        self._counts = TokenCounts(chars_per_token)
        self._splitter = ThinkSplitter.of(run.profile, closed=True)
        request = run.request
        self._chat = request.messages is not None
        tools = request.body.get("tools") or ()
        raw = way == "ids" and self._chat and bool(tools) and request.body.get("tool_choice") != "none"
        self._calls = (
            CallParser(tools, parallel=request.body.get("parallel_tool_calls") is not False)
            if raw and parses_calls(run.profile)
            else None
        )
        extract = request.control.answer == "extract"
        self._form = AnswerForm(run.profile.extract_suffix) if extract else None
        self._text, self._n_shown = "", 0  # of the answer form
        self._mislabelled: list[str] = []
        self._thought_again = False
        self._finish: str | None = None
        self.extra = dict(run.extra)
        self.answered = self.reopened = False

    @property
    def generated(self) -> int:
        """Tokens so far."""
        return self._counts.generated

    def opening(self) -> Iterator[Delta]:
        """The hand-off as the client sees it: the closing sentence, and the opened answer form."""
        told, opened = split_handoff(self._run.profile, self._run.request)
        kept = self._run.kept
        if told := told.lstrip() if not kept or kept[-1].isspace() else told:
            yield Delta("reasoning", told)
        if opened:
            yield Delta("content", opened)

    def feed(self, chunk: Chunk) -> Iterator[Delta]:
        """Deltas of a chunk."""
        self._counts.read(chunk)
        self._finish = chunk.finish_reason or self._finish
        self.extra |= {name: value for name, value in chunk.extra.items() if name != "prompt_token_ids"}
        text = chunk.content
        if chunk.reasoning and self._may_think():
            self._counts.reasoned(chunk.reasoning, alone=not chunk.content)
            self._mislabelled.append(chunk.reasoning)
        elif chunk.reasoning:  # some servers call an answer reasoning whose thinking was closed in the prompt
            text = chunk.reasoning + text
        if chunk.content and self._mislabelled:
            yield Delta("reasoning", "".join(self._mislabelled))
            self._mislabelled.clear()
            self._thought_again = True
            self._run.uncontrolled = (
                "the server dropped the thinking that it was to continue, and thought again"
            )
        if text:
            pieces = self._splitter.feed(text)
            if self._splitter.thinking and self._closes:
                self.reopened = True
                return
            yield from self._show(pieces)
        if chunk.delta_extra:
            yield Delta("content", "", extra=chunk.delta_extra)
        if extra := self._choice_extra(chunk):
            yield Delta("content", "", choice_extra=extra)

    def end(self) -> Iterator[Delta]:
        """What was held back. Raises `UpstreamError` where the stream broke off."""
        if self._finish is None and not self.answered:
            raise UpstreamError(
                "the upstream ended the continuation without a finish_reason. Look at its log.", 502
            )
        if self._mislabelled:
            yield from self._show(self._splitter.feed("".join(self._mislabelled)))
        yield from self._show(self._splitter.finish())
        if self._calls is not None:
            yield from self._told(*self._calls.finish())
        if self._form is not None and not self.answered and self._finish != "length":
            yield Delta("content", self._run.profile.extract_suffix)

    def finished(self) -> Finished:
        """The end event, with the counts of both calls."""
        run = self._run
        first, second, cut = run.counts, self._counts, run.cut
        handoff = self._handoff_tokens if self._handoff_tokens is not None else run.handoff_tokens
        position, rewound = (cut.decision.position, cut.rewound) if cut else (0, 0)
        # Tags, and tokens without text: generated, and neither kept as reasoning nor thrown away.
        others = max(0, first.generated - position - rewound)
        again = min(second.reasoning, second.total) if self._thought_again else 0
        answer = second.total - again + others
        prompt, told = estimated_prompt(run, self._chars_per_token)
        second_prompt = self._prompt_tokens or second.prompt
        if not told and second_prompt is not None:  # the second call has read all of the first one's prompt
            prompt = max(1, second_prompt - position - handoff)
        usage = Usage(
            prompt, position + again, answer, handoff, rewound + self._wasted,
            reprefill_tokens=second_prompt or prompt + position + handoff,
            estimated=not (told and first.exact and second.exact and self._handoff_tokens is not None),
        )  # fmt: skip
        reason = cut.decision.reason if cut else StopReason.BUDGET
        decision: Decision | None = cut.decision if cut else run.at_once
        return Finished(
            self._finish_reason(),
            reason,
            usage,
            None if reason is StopReason.NATURAL else decision,
            uncontrolled=run.uncontrolled,
            extra=self.extra or None,
            budget_by="proxy" if reason is StopReason.BUDGET and run.native is not None else None,
        )

    def _finish_reason(self) -> str:
        called = self._calls is not None and self._calls.n_calls > 0
        if called and self._finish == "stop":
            return "tool_calls"
        return "stop" if self.answered else self._finish or "stop"

    def _may_think(self) -> bool:
        """Whether what the server calls reasoning may be just that: it was not seen to keep our message."""
        return self._way == "message" and not self._run.plan.proven and not self._counts_content()

    def _counts_content(self) -> bool:
        return self._n_shown > 0

    def _show(self, pieces: list[Piece]) -> Iterator[Delta]:
        for channel, text in pieces:
            if channel == "reasoning":  # a block that was opened again
                self._counts.reasoned(text, alone=len(pieces) == 1)
                self._thought_again = True
                self._run.uncontrolled = "the model opened thinking again after it was closed"
                yield Delta("reasoning", text)
                continue
            calls: list[dict[str, Any]] = []
            if self._form is not None:
                text = self._up_to_form(text)
            elif self._calls is not None:
                text, calls = self._calls.feed(text)
            yield from self._told(text, calls)
            if self.answered:
                return

    def _told(self, text: str, calls: list[dict[str, Any]]) -> Iterator[Delta]:
        self._n_shown += len(text)
        if text:
            yield Delta("content", text)
        for call in calls:
            yield Delta("content", "", extra={"tool_calls": [call]})

    def _up_to_form(self, text: str) -> str:
        """The part of new text up to the end of the answer form, which ends the generation."""
        assert self._form is not None
        before = len(self._text)
        self._text += text
        end = self._form.end(self._text)
        self.answered = end is not None
        return text if end is None else self._text[before : max(before, end)]

    def _choice_extra(self, chunk: Chunk) -> dict[str, Any]:
        extra, body = dict(chunk.choice_extra), self._run.request.body
        if body.get("return_token_ids") and chunk.token_ids:
            extra["token_ids"] = list(chunk.token_ids)
        if self._way == "ids" and self._chat and "logprobs" in extra:
            told = as_chat(extra.pop("logprobs"), body.get("top_logprobs") or 0)
            if told is not None and body.get("logprobs") is True:
                extra["logprobs"] = told
        return extra
