"""The answer that a generation owes: its thinking is over, vLLM has ended it, and nothing was answered.

A model may end its turn within thinking, or as the first thing after it. vLLM then ends the request, and no
plugin can hold it. Where control was asked for and there is room, a second request goes on from the same
token ids, the hand-off after them where thinking is still open; the prefix cache holds all but the hand-off.
Knows ids, bodies and counts. Talks to nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from desist.controller import BoundaryDetector, Control, ModelProfile, StopReason
from desist.data.errors import UpstreamError
from desist.proxy.engines.base import Delta, Finished, GenerationRequest, Usage
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.bodies import Continued, ids_body
from desist.proxy.engines.upstream.calls import CallParser
from desist.proxy.engines.upstream.plan import parses_calls
from desist.proxy.engines.upstream.probabilities import as_chat
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.engines.vllm.beside.run import VllmRun

__all__ = ["OwedAnswer", "owed_answer", "unpaid"]

_NO_WAY = "thinking ended without an answer, and this request cannot be gone on with: {}"


@dataclass(slots=True)
class OwedAnswer:
    """One second request. `body`: a text completion; `handoff`: ids that it adds to what was generated."""

    request: GenerationRequest
    profile: ModelProfile
    body: dict[str, Any]
    told: str  # the hand-off's text that is thinking
    handoff: int
    prompt_tokens: int
    run: VllmRun
    calls: CallParser | None = None
    function: str | None = None  # the tool that must be called
    _arguments: list[str] = field(default_factory=list)

    def opening(self) -> Iterator[Delta]:
        """The closing sentence, as the client sees it."""
        if self.told:
            yield Delta("reasoning", self.told)

    def feed(self, chunk: Chunk) -> Iterator[Delta]:
        """The deltas of a chunk."""
        for delta in self.run.feed(chunk):
            yield from self._shown(delta)

    def finish(self) -> Iterator[Delta]:
        """What was held back. Raises `UpstreamError` where the stream broke off."""
        for delta in self.run.finish():
            yield from self._shown(delta)
        if self.calls is not None:
            yield from _told(*self.calls.finish())
        if self.function is not None:
            call = {"name": self.function, "arguments": "".join(self._arguments)}
            made = {"index": 0, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": call}
            yield from _told("", [made])

    def finished(self, first: Finished) -> Finished:
        """The end event: the first request's, with what the second one added."""
        usage, run = first.usage, self.run
        called = self.function is not None or (self.calls is not None and self.calls.n_calls > 0)
        stopped = run.finish_reason == "stop"
        return replace(
            first,
            finish_reason="tool_calls" if called and stopped else run.finish_reason,
            stop_reason=StopReason.NATURAL if first.stop_reason is StopReason.NONE else first.stop_reason,
            usage=Usage(
                usage.prompt_tokens,
                usage.reasoning_tokens,
                usage.answer_tokens + run.generated,
                usage.handoff_tokens + self.handoff,
                usage.rewound_tokens,
                usage.reprefill_tokens + self.prompt_tokens,
                usage.estimated,
            ),
        )

    def _shown(self, delta: Delta) -> Iterator[Delta]:
        if delta.choice_extra:
            extra = _choice_extra(delta.choice_extra, self.request)
            if extra:
                yield Delta("content", "", choice_extra=extra)
            return
        if delta.channel == "content" and self.function is not None:
            self._arguments.append(delta.text)
        elif delta.channel == "content" and self.calls is not None:
            yield from _told(*self.calls.feed(delta.text))
        else:
            yield delta


def owed_answer(
    run: VllmRun, request: GenerationRequest, profile: ModelProfile, facts: ModelFacts | None
) -> OwedAnswer | None:
    """The second request of a generation that has ended without its answer; None where none is owed.

    Raises `UpstreamError` with the reason where one is owed that cannot be asked for.
    """
    if not run.may_owe:
        return None
    prompt, ids = run.prompt_ids, run.ids
    if facts is None or not prompt:
        raise UpstreamError(_NO_WAY.format("its token ids are not known"), 502)
    vocabulary = facts.vocabulary
    before = BoundaryDetector.from_prompt(profile, vocabulary, prompt)
    if ids and (ids[-1] in facts.end_ids or ids[-1] == run.stop_token):
        ids = ids[:-1]
    after = BoundaryDetector.from_prompt(profile, vocabulary, prompt)
    for token in ids:
        after.push(token)
    if not after.thinking and (before.closed or not after.closed):
        return None  # it never thought
    handoff: tuple[int, ...] = ()
    told = ""
    limit = request.sampling.max_tokens
    room = None if limit is None else limit - run.generated
    if after.thinking:
        text = profile.handoff("write")
        handoff = vocabulary.encode(text)
        if room is not None and room <= len(handoff):
            text = profile.think_close
            handoff = vocabulary.encode(text)
        told = text.partition(profile.think_close)[0].rstrip()
    if room is not None and room <= len(handoff):
        return None  # an honest end: there is no token left
    calls, function = _calls(request, profile)
    spliced = (*prompt, *ids, *handoff)
    body = ids_body(request, Continued("", run.generated + len(handoff)), spliced)
    body |= _bound(request, function)
    second = replace(request, messages=None, prompt=spliced, control=Control("shadow"))
    return OwedAnswer(
        request,
        profile,
        body,
        told,
        len(handoff),
        len(spliced),
        VllmRun(second, profile, facts, lambda: True),
        calls,
        function,
    )


def unpaid(first: Finished, error: UpstreamError) -> Finished:
    """The end event where an owed answer cannot be asked for."""
    return replace(first, uncontrolled=first.uncontrolled or str(error))


def _calls(request: GenerationRequest, profile: ModelProfile) -> tuple[CallParser | None, str | None]:
    """What reads the calls of an answer: a parser, or the name of the one tool that must be called."""
    tools, choice = request.body.get("tools") or (), request.body.get("tool_choice")
    if request.messages is None or not tools or choice == "none":
        return None, None
    if choice == "required" or isinstance(choice, Mapping):
        named = choice["function"]["name"] if isinstance(choice, Mapping) else None
        names = [tool["function"]["name"] for tool in tools]
        if named is None and len(names) > 1:
            raise UpstreamError(_NO_WAY.format("one of several tools must be called"), 502)
        return None, named or names[0]
    if not parses_calls(profile):
        raise UpstreamError(_NO_WAY.format("its tool calls have a form that is not read here"), 502)
    return CallParser(tools, parallel=request.body.get("parallel_tool_calls") is not False), None


def _bound(request: GenerationRequest, function: str | None) -> dict[str, Any]:
    """The grammar of the one tool that must be called."""
    if function is None:
        return {}
    for tool in request.body["tools"]:
        if tool["function"]["name"] == function:
            schema = tool["function"].get("parameters") or {"type": "object"}
            return {"structured_outputs": {"json": schema}}
    raise UpstreamError(_NO_WAY.format(f"there is no tool {function!r}"), 502)


def _choice_extra(found: Mapping[str, Any], request: GenerationRequest) -> dict[str, Any]:
    """Fields of a text completion's choice as those of the client's request."""
    extra = {name: value for name, value in found.items() if name != "prompt_token_ids"}
    if request.messages is not None and "logprobs" in extra:
        told = as_chat(extra.pop("logprobs"), request.body.get("top_logprobs") or 0)
        if told is not None and request.body.get("logprobs") is True:
            extra["logprobs"] = told
    return extra


def _told(text: str, calls: list[dict[str, Any]]) -> Iterator[Delta]:
    if text:
        yield Delta("content", text)
    for call in calls:
        yield Delta("content", "", extra={"tool_calls": [call]})
