"""POST /v1/responses, and what is kept of them by id. Knows the routes; `proxy.responses` does the work.

A response is generated as a chat: with the same control, limits and lifecycle. In mode off before a server
of its own the request is passed on untouched, as on the other routes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from desist.proxy.answering.generation import answer
from desist.proxy.errors import ApiError, shorten, validation_error
from desist.proxy.intake.accept import read_json, take_chat
from desist.proxy.lifecycle.running import owner_of
from desist.proxy.relay.mode_off import relayed_if_off, untouched
from desist.proxy.responses.items import input_items
from desist.proxy.responses.request import LOGPROBS, as_sent, chat_body, renamed
from desist.proxy.responses.schema import ResponsesBody
from desist.proxy.responses.shape import Asked, ResponsesShape
from desist.proxy.responses.store import Kept
from desist.proxy.state import ProxyState, state_of

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    state = state_of(request)
    if (relayed := await relayed_if_off(request, state)) is not None:
        return relayed
    raw = await read_json(request, state.settings.limits.max_body_bytes)
    try:
        body = ResponsesBody.model_validate(raw)
    except ValidationError as error:
        raise validation_error(error) from error
    owner = owner_of(request)
    earlier = (
        []
        if body.previous_response_id is None
        else (await _kept(state, owner, body.previous_response_id)).conversation
    )
    items = [*earlier, *input_items(body.input)]
    try:
        intake = await take_chat(request, state, chat_body(body, raw, items, earlier=len(earlier)))
    except ApiError as error:
        raise renamed(error, raw) from error
    intake = replace(intake, resolved=as_sent(intake.resolved, raw))
    store = state.responses if body.store is not False and state.responses.keeps else None

    def keep(response: dict[str, Any]) -> None:
        if store is not None:
            store.put(owner, Kept(response, items))

    used = body if state.passes_through else intake.choices[0].sampling
    asked = Asked(
        body,
        raw,
        intake.model,
        used.temperature,
        used.top_p,
        kept=store is not None,
        logprobs=bool(body.top_logprobs) or LOGPROBS in (body.include or []),
    )
    how = intake.resolved.reasoning_format or state.settings.stream.reasoning_format
    return await answer(request, state, intake, ResponsesShape(asked, state.new_id, state.clock, how, keep))


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    state = state_of(request)
    if (relayed := await _relayed(request, state, response_id)) is not None:
        return relayed
    if request.query_params.get("stream", "").lower() == "true":
        raise ApiError(
            400,
            "'stream' is true: a stream cannot be read again. Leave it out.",
            param="stream",
            code="not_offered",
        )
    return _json((await _kept(state, owner_of(request), response_id, "response_id")).response)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    state = state_of(request)
    if (relayed := await _relayed(request, state, response_id)) is not None:
        return relayed
    kept = await _kept(state, owner_of(request), response_id, "response_id")
    items = [
        item if "id" in item else {**item, "id": f"item_{number}"} for number, item in enumerate(kept.items)
    ]
    newest_first = request.query_params.get("order", "desc") != "asc"
    listed = items[::-1] if newest_first else items
    first, last = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
    return _json({"object": "list", "data": listed, "first_id": first, "last_id": last, "has_more": False})


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    state = state_of(request)
    if (relayed := await _relayed(request, state, response_id)) is not None:
        return relayed
    if not await state.responses.delete(owner_of(request), response_id):
        raise _unknown(state, response_id, "response_id", 404)
    return _json({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    state = state_of(request)
    if (relayed := await _relayed(request, state, response_id)) is not None:
        return relayed
    await _kept(state, owner_of(request), response_id, "response_id")
    raise ApiError(
        400,
        f"response {shorten(response_id)} is complete; only those in the background can be cancelled, "
        "and none run there. Close the connection of a running one, or POST /desist/v1/requests/ID/stop.",
        code="not_offered",
    )


async def _relayed(request: Request, state: ProxyState, response_id: str) -> Response | None:
    """Responses of mode off are the server's own: what is not kept here is asked for there."""
    if await state.responses.get(owner_of(request), response_id) is not None:
        return None
    return untouched(request, state)


async def _kept(
    state: ProxyState, owner: bytes, response_id: str, param: str = "previous_response_id"
) -> Kept:
    found = await state.responses.get(owner, response_id)
    if found is None:
        raise _unknown(state, response_id, param, 404)
    return found


def _unknown(state: ProxyState, response_id: str, param: str, status: int) -> ApiError:
    kept = state.settings.responses
    why = (
        f"Kept are the last {kept.keep} of this server, for {kept.keep_s:g} s, unless their request said "
        "store: false. Send the items of the conversation instead."
        if state.responses.keeps
        else "No responses are kept here (responses.keep is 0). Send the items of the conversation instead."
    )
    return ApiError(
        400 if not state.responses.keeps else status,
        f"'{param}' is {shorten(response_id)}: no such response is kept under this key. {why}",
        param=param,
        code="response_not_found",
    )


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
