"""POST /desist/v1/requests/{id}/stop: end the thinking of a running request now; its answer is then written.

Knows who may stop a request: the key that began it, or an operator's. It is stopped wherever it runs, in this
process or in another worker; the engine there does the work.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from desist.data.errors import EngineError
from desist.proxy.access.middleware import is_operator
from desist.proxy.errors import ApiError, shorten
from desist.proxy.lifecycle.running import owner_of
from desist.proxy.lifecycle.stopping import Stopping, stop_here
from desist.proxy.lifecycle.team import Team
from desist.proxy.state import state_of

__all__ = ["router"]

router = APIRouter()


@router.post("/desist/v1/requests/{request_id}/stop")
async def stop_request(request: Request, request_id: str) -> dict[str, Any]:
    """Asks for the stop and tells of how many choices; it happens at the next clean place in each.

    `request_id`: the `x-request-id` of the running response. 404: no such request of this key runs. 409: it
    runs, but its engine cannot stop it.
    """
    state = state_of(request)
    owner = None if is_operator(request) else owner_of(request)
    told = await stop_here(state.running, state.engine, state.settings.engine, request_id, owner)
    if state.team is not None:
        told += await _elsewhere(state.team, request_id, owner, told)
    if not told.found:
        raise ApiError(
            404,
            f"no request {shorten(request_id)} runs under this key. Give the x-request-id of a response that "
            "is not complete yet.",
            param="request_id",
            code="request_not_found",
        )
    if not told.choices:
        raise ApiError(
            409,
            f"request {shorten(request_id)} cannot be stopped: it runs with mode off and is passed on "
            "untouched.",
            code="cannot_stop",
        )
    if told.refused and not told.stopped:
        raise ApiError(
            409, f"request {shorten(request_id)} was not stopped: {told.refused[0]}", code="cannot_stop"
        )
    return {
        "id": request_id,
        "object": "desist.stop",
        "choices": told.choices,
        "stopped": told.stopped,
        "over": told.choices - told.stopped - len(told.refused),
        "refused": len(told.refused),
    }


async def _elsewhere(team: Team, request_id: str, owner: bytes | None, here: Stopping) -> Stopping:
    """What became of it in the other workers. What is stopped here is told even if they cannot be asked."""
    try:
        return await team.stop(request_id, owner)
    except EngineError as error:
        if here.found:
            return Stopping()
        raise ApiError(503, f"the other workers could not be asked: {error}", code="not_told") from error
