"""GET /v1/models and /v1/models/{id}. Knows the model objects of the OpenAI API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from desist.proxy.engines.base import ModelCard
from desist.proxy.errors import ApiError, shorten
from desist.proxy.intake import authorize
from desist.proxy.state import ProxyState, state_of

__all__ = ["router"]

router = APIRouter()


def _object(card: ModelCard, created: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": card.model_id,
        "object": "model",
        "created": created,
        "owned_by": card.owned_by,
    }
    return told if card.max_model_len is None else told | {"max_model_len": card.max_model_len}


async def _cards(request: Request) -> tuple[ProxyState, tuple[ModelCard, ...]]:
    state = state_of(request)
    authorize(request, state)
    return state, await state.engine.models()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    state, cards = await _cards(request)
    return {"object": "list", "data": [_object(card, state.started_at) for card in cards]}


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> dict[str, Any]:
    state, cards = await _cards(request)
    for card in cards:
        if card.model_id == model_id:
            return _object(card, state.started_at)
    served = ", ".join(card.model_id for card in cards) or "nothing"
    raise ApiError(
        404,
        f"model {shorten(model_id)} is not served here. Served: {served}.",
        param="model",
        code="model_not_found",
    )
