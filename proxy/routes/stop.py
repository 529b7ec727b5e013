"""POST /desist/v1/requests/{id}/stop: end the thinking of a running request now; its answer is then written.

Knows which requests run and who may stop them: the key that began one, or an operator's. The engine does
the work.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from desist.data.errors import EngineError
from desist.proxy.access.middleware import is_operator
from desist.proxy.errors import ApiError, shorten
from desist.proxy.lifecycle.running import owner_of
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
    found = state.running.find(request_id, None if is_operator(request) else owner_of(request))
    if not found:
        raise ApiError(
            404,
            f"no request {shorten(request_id)} runs under this key. Give the x-request-id of a response that "
            "is not complete yet.",
            param="request_id",
            code="request_not_found",
        )
    stop = getattr(state.engine, "stop", None)
    choices = [choice for ticket in found for choice in ticket.choices]
    if stop is None or not choices:
        why = (
            "it runs with mode off and is passed on untouched"
            if not choices
            else f"the engine '{state.settings.engine}' cannot end thinking by hand"
        )
        raise ApiError(409, f"request {shorten(request_id)} cannot be stopped: {why}.", code="cannot_stop")
    stopped, refusals = 0, []
    for choice in choices:
        try:
            stopped += bool(await stop(choice))
        except EngineError as error:
            refusals.append(str(error))
    if refusals and not stopped:
        raise ApiError(
            409, f"request {shorten(request_id)} was not stopped: {refusals[0]}", code="cannot_stop"
        )
    return {
        "id": request_id,
        "object": "desist.stop",
        "choices": len(choices),
        "stopped": stopped,
        "over": len(choices) - stopped - len(refusals),
        "refused": len(refusals),
    }
