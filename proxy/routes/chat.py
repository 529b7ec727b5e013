"""POST /v1/chat/completions. Knows the chat objects of the OpenAI API; the work is done in `generation`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.answering.generation import answer
from desist.proxy.answering.showing import Showing
from desist.proxy.controls.values import ReasoningFormat
from desist.proxy.engines.base import Delta
from desist.proxy.intake.accept import take_chat
from desist.proxy.relay.mode_off import relayed_if_off
from desist.proxy.state import state_of

__all__ = ["ChatShape", "router"]

router = APIRouter()


class ChatShape:
    """Chat completion objects. Reasoning and content are separate fields, never both in one delta."""

    def __init__(
        self,
        identity: str,
        created: int,
        model: str,
        reasoning_field: str,
        reasoning_format: ReasoningFormat = "field",
    ) -> None:
        self._head = {"id": f"chatcmpl-{identity}", "created": created, "model": model}
        self._showing = Showing(reasoning_format, reasoning_field)
        self.steady = self._showing.steady

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if streamed else "chat.completion"}

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        shown = self._showing.delta(index, delta)
        if shown is None:
            return None
        fields: dict[str, Any] = {}
        if shown.reasoning:
            fields = self._showing.fields(shown.reasoning)
        elif shown.content:
            fields = {"content": shown.content}
        return self._choice(index, fields | shown.extra) | dict(delta.choice_extra or {})

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        rest = self._showing.rest(index)
        return self._choice(index, {"content": rest} if rest else {}) | {"finish_reason": finish_reason}

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        shown = self._showing.whole(buffer.reasoning, buffer.content, buffer.extra)
        silent = not shown.content and "tool_calls" in buffer.extra
        message: dict[str, Any] = {"role": "assistant", "content": None if silent else shown.content}
        message |= self._showing.fields(shown.reasoning or None)
        return {
            "index": index,
            "message": message | _plain_calls(shown.extra),
            "logprobs": None,
            "finish_reason": buffer.finished.finish_reason,
        } | buffer.choice_extra

    @staticmethod
    def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _plain_calls(extra: dict[str, Any]) -> dict[str, Any]:
    """Streamed tool calls carry an index, complete ones do not."""
    if not isinstance(extra.get("tool_calls"), list):
        return extra
    calls = [
        {key: value for key, value in call.items() if key != "index"} if isinstance(call, dict) else call
        for call in extra["tool_calls"]
    ]
    return {**extra, "tool_calls": calls}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    if (relayed := await relayed_if_off(request, state)) is not None:
        return relayed
    intake = await take_chat(request, state)
    stream = state.settings.stream
    shape = ChatShape(
        state.new_id(),
        int(state.clock()),
        intake.model,
        stream.reasoning_field,
        intake.resolved.reasoning_format or stream.reasoning_format,
    )
    return await answer(request, state, intake, shape)
