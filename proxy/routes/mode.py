"""GET and POST /desist/v1/mode: where the kill switch stands, and turning it. An operator's key is asked for.

Knows the body; the switch is in `switch`.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from desist.data.errors import ControlError, EngineError
from desist.proxy.access.middleware import require_operator
from desist.proxy.errors import ApiError, validation_error
from desist.proxy.intake.accept import read_json
from desist.proxy.state import ProxyState, state_of

__all__ = ["ModeBody", "router"]

router = APIRouter()
_MOST_BYTES = 4096


class ModeBody(BaseModel):
    """The highest mode that requests may use from now on. "active" holds nothing back."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["off", "shadow", "active"]


@router.get("/desist/v1/mode")
async def get_mode(request: Request) -> dict[str, Any]:
    require_operator(request)
    return _told(state_of(request))


@router.post("/desist/v1/mode")
async def set_mode(request: Request) -> dict[str, Any]:
    """Turn the switch: new requests obey at once, those that run are stopped by no score any more.

    Answers once all workers obey. Raises `ApiError` 400 for another body, 503 where the file of the mode
    could not be written, or other workers could not be told.
    """
    require_operator(request)
    state = state_of(request)
    try:
        body = ModeBody.model_validate(await read_json(request, _MOST_BYTES))
    except ValidationError as error:
        raise validation_error(error) from error
    try:
        persistent, failure = await state.switch.turn(body.mode), None
    except ControlError as error:
        persistent, failure = False, error
    await _tell_others(state)
    if failure is not None:
        raise ApiError(503, str(failure), code="mode_not_kept") from failure
    return _told(state) | {"persistent": persistent}


async def _tell_others(state: ProxyState) -> None:
    if state.team is None:
        return
    try:
        silent = await state.team.turn(state.switch.asked)
    except EngineError as error:
        raise ApiError(
            503,
            f"the mode is {state.switch.cap} here, but the other workers could not be told: {error}",
            code="mode_not_told",
        ) from error
    if silent:
        raise ApiError(
            503,
            f"the mode is {state.switch.cap} here, but {silent} other worker(s) have not answered yet: they "
            "obey as soon as they can hear. Ask again.",
            code="mode_not_told",
        )


def _told(state: ProxyState) -> dict[str, Any]:
    """`cap`: the highest mode of new requests; `mode`: that of those which name none."""
    told = {"object": "desist.mode", "cap": state.switch.cap, "default": state.settings.control.mode}
    return told | ({} if state.switch.failure is None else {"failure": state.switch.failure})
