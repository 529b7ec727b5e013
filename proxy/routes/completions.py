"""POST /v1/completions. Knows the text completion objects; the work is done in `generation`.

`text` carries the answer and, beside it, the reasoning field(s) carry the thinking, as in chat.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.answering.generation import answer
from desist.proxy.answering.showing import Showing
from desist.proxy.controls.values import ReasoningFormat
from desist.proxy.engines.base import Delta
from desist.proxy.intake.accept import take_completion
from desist.proxy.relay.mode_off import relayed_if_off
from desist.proxy.state import state_of

__all__ = ["CompletionShape", "router"]

router = APIRouter()


class CompletionShape:
    """Text completion objects, streamed and complete ones alike."""

    def __init__(
        self,
        identity: str,
        created: int,
        model: str,
        reasoning_field: str,
        reasoning_format: ReasoningFormat = "field",
    ) -> None:
        self._head = {
            "id": f"cmpl-{identity}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._showing = Showing(reasoning_format, reasoning_field)
        self.steady = self._showing.steady

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        return dict(self._head)

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        shown = self._showing.delta(index, delta)
        if shown is None:
            return None
        choice = self._choice(index, shown.content, None)
        if shown.reasoning:
            choice |= self._showing.fields(shown.reasoning)
        return choice | shown.extra | dict(delta.choice_extra or {})

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        return self._choice(index, self._showing.rest(index), finish_reason)

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        shown = self._showing.whole(buffer.reasoning, buffer.content, buffer.extra)
        choice = self._choice(index, shown.content, buffer.finished.finish_reason)
        choice |= self._showing.fields(shown.reasoning or None)
        return choice | shown.extra | buffer.choice_extra

    @staticmethod
    def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    state = state_of(request)
    if (relayed := await relayed_if_off(request, state)) is not None:
        return relayed
    intake = await take_completion(request, state)
    stream = state.settings.stream
    shape = CompletionShape(
        state.new_id(),
        int(state.clock()),
        intake.model,
        stream.reasoning_field,
        intake.resolved.reasoning_format or stream.reasoning_format,
    )
    return await answer(request, state, intake, shape)
