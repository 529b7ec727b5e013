"""GET /v1/models and /v1/models/{id}. Knows the model objects of the OpenAI API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from desist.proxy.engines.base import ModelCard
from desist.proxy.errors import ApiError, shorten
from desist.proxy.live.blocks import aliases_of, canonical
from desist.proxy.relay.mode_off import untouched
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
    return state, await state.engine.models()


def _aliases(state: ProxyState, card: ModelCard) -> tuple[str, ...]:
    return aliases_of(state.settings, card.model_id)


@router.get("/v1/models", response_model=None)
async def list_models(request: Request) -> dict[str, Any] | Response:
    if (relayed := untouched(request, state_of(request))) is not None:
        return relayed
    state, cards = await _cards(request)
    data = []
    for card in cards:
        told = _object(card, state.started_at)
        data += [told, *(told | {"id": name, "root": card.model_id} for name in _aliases(state, card))]
    return {"object": "list", "data": data}


@router.get("/v1/models/{model_id:path}", response_model=None)
async def get_model(request: Request, model_id: str) -> dict[str, Any] | Response:
    if (relayed := untouched(request, state_of(request))) is not None:
        return relayed
    state, cards = await _cards(request)
    for card in cards:
        if card.model_id == canonical(state.settings, model_id):
            told = _object(card, state.started_at)
            return told if card.model_id == model_id else told | {"id": model_id, "root": card.model_id}
    served = ", ".join(card.model_id for card in cards) or "nothing"
    raise ApiError(
        404,
        f"model {shorten(model_id)} is not served here. Served: {served}.",
        param="model",
        code="model_not_found",
    )
