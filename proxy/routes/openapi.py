"""GET /openapi.json: the routes, described. Asks for a key as they do; `openapi: false` switches it off."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from desist.proxy.errors import ApiError
from desist.proxy.openapi.document import document
from desist.proxy.relay.relay import relay_target
from desist.proxy.state import state_of

__all__ = ["router"]

router = APIRouter()


@router.get("/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    state = state_of(request)
    if not state.settings.openapi:
        raise ApiError(
            404, "GET /openapi.json: Not Found. The setting openapi is false.", code="path_not_found"
        )
    passed_on = () if relay_target(state) is None else state.settings.relay.paths
    return document(passed_on=passed_on, asks_for_keys=state.access.asks_for_keys)
