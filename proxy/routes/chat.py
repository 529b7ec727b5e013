"""POST /v1/chat/completions. Knows the chat objects of the OpenAI API; the work is done in `generation`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from desist.proxy.choice import ChoiceBuffer, reasoning_fields
from desist.proxy.engines.base import Delta
from desist.proxy.generation import answer
from desist.proxy.intake import take_chat
from desist.proxy.state import state_of

__all__ = ["ChatShape", "router"]

router = APIRouter()


class ChatShape:
    """Chat completion objects. Reasoning and content are separate fields, never both in one delta."""

    def __init__(self, identity: str, created: int, model: str, reasoning_field: str) -> None:
        self._head = {"id": f"chatcmpl-{identity}", "created": created, "model": model}
        self._field = reasoning_field

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if streamed else "chat.completion"}

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if delta.text and delta.channel == "reasoning":
            fields = reasoning_fields(delta.text, self._field)
        elif delta.text:
            fields = {"content": delta.text}
        choice = self._choice(index, fields | dict(delta.extra or {}))
        return choice | dict(delta.choice_extra or {})

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return self._choice(index, {}) | {"finish_reason": finish_reason}

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        silent = not buffer.content and "tool_calls" in buffer.extra
        message: dict[str, Any] = {"role": "assistant", "content": None if silent else buffer.content}
        message |= reasoning_fields(buffer.reasoning or None, self._field)
        return {
            "index": index,
            "message": message | _plain_calls(buffer.extra),
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
    calls = [{key: value for key, value in call.items() if key != "index"} for call in extra["tool_calls"]]
    return {**extra, "tool_calls": calls}


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    intake = await take_chat(request, state)
    shape = ChatShape(state.new_id(), int(state.clock()), intake.model, state.settings.stream.reasoning_field)
    return await answer(request, state, intake, shape)
