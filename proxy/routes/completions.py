"""POST /v1/completions. Knows the text completion objects; the work is done in `generation`.

`text` carries the answer and, beside it, the reasoning field(s) carry the thinking, as in chat.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from desist.proxy.choice import ChoiceBuffer, reasoning_fields
from desist.proxy.engines.base import Delta
from desist.proxy.generation import answer
from desist.proxy.intake import take_completion
from desist.proxy.state import state_of

__all__ = ["CompletionShape", "router"]

router = APIRouter()


class CompletionShape:
    """Text completion objects, streamed and complete ones alike."""

    def __init__(self, identity: str, created: int, model: str, reasoning_field: str) -> None:
        self._head = {
            "id": f"cmpl-{identity}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._field = reasoning_field

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        return dict(self._head)

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        thinking = delta.text and delta.channel == "reasoning"
        choice = self._choice(index, "" if thinking else delta.text, None)
        if thinking:
            choice |= reasoning_fields(delta.text, self._field)
        return choice | dict(delta.extra or {}) | dict(delta.choice_extra or {})

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return self._choice(index, "", finish_reason)

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        choice = self._choice(index, buffer.content, buffer.finished.finish_reason)
        choice |= reasoning_fields(buffer.reasoning or None, self._field)
        return choice | buffer.extra | buffer.choice_extra

    @staticmethod
    def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    state = state_of(request)
    intake = await take_completion(request, state)
    shape = CompletionShape(
        state.new_id(), int(state.clock()), intake.model, state.settings.stream.reasoning_field
    )
    return await answer(request, state, intake, shape)
