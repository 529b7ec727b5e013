"""Requests that nobody controls: the bytes of the client go to the server behind, its bytes come back.

Knows which requests these are: mode off, an engine that hands requests on, and nothing of ours left to be
done. What is ours in such a body (`desist`, a model's alias) is changed in place, no other byte is. The
server behind judges the rest, also what is no JSON at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from desist.proxy.access.middleware import tenant_of
from desist.proxy.access.tenants import Tenant, lower_mode
from desist.proxy.controls.asked import Asked, read_own
from desist.proxy.controls.values import NO_LIMIT
from desist.proxy.errors import validation_error
from desist.proxy.intake.body import read_body
from desist.proxy.intake.headers import MODE_HEADER
from desist.proxy.intake.json_members import edit_members
from desist.proxy.intake.schemas import DesistField
from desist.proxy.live.blocks import canonical
from desist.proxy.relay.relay import RelayedResponse, relay_target
from desist.proxy.state import ProxyState
from desist.proxy.telemetry.record import record_of

__all__ = ["relayed_if_off", "untouched"]


async def relayed_if_off(request: Request, state: ProxyState) -> Response | None:
    """The untouched answer to a request that is not controlled; None: it takes the way of all others.

    Raises `ApiError` 400 for a `desist` object or a header of ours that cannot be read, 413 for too large a
    body.
    """
    target = relay_target(state)
    if target is None:
        return None
    data = await read_body(request, state.settings.limits.max_body_bytes)
    raw = _object(data)
    own = _own(raw)
    asked = read_own({} if own is None else own.said(), request.headers)
    tenant, named = tenant_of(request), None if raw is None else raw.get("model")
    model = canonical(state.settings, named) if isinstance(named, str) else ""
    resolver, defaults = state.control_for(model)
    mode = lower_mode(resolver.mode_of(asked, tenant=tenant, defaults=defaults), state.switch.cap)
    if mode != "off" or _asks_for_work(asked, tenant):
        return None
    changes = {} if own is None and "desist" not in (raw or {}) else {"desist": b""}
    if isinstance(named, str) and model != named:
        changes["model"] = msgspec.json.encode(model)
    data = edit_members(data, changes.get) if changes else data
    _note(request, state, raw, model)
    return RelayedResponse(state, target, body=data, told={MODE_HEADER: "off"})


def untouched(request: Request, state: ProxyState) -> Response | None:
    """The untouched answer to a request without a body of ours; None where the mode is not off."""
    target = relay_target(state)
    if target is None:
        return None
    mode = state.resolver.mode_of(read_own({}, request.headers), tenant=tenant_of(request))
    if lower_mode(mode, state.switch.cap) != "off":
        return None
    return RelayedResponse(state, target, told={MODE_HEADER: "off"})


def _note(request: Request, state: ProxyState, raw: Mapping[str, Any] | None, model: str) -> None:
    """What can be known of the request; no choices, since nobody looks at how they end."""
    streams = (raw or {}).get("stream") is True
    record, label = record_of(request.scope), state.metrics.models.label(model)
    record.accepted(label, "off", tenant_of(request).name, stream=streams, choices=0)
    record.handed_on()


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _own(raw: Mapping[str, Any] | None) -> DesistField | None:
    given = None if raw is None else raw.get("desist")
    try:
        return None if given is None else DesistField.model_validate(given)
    except ValidationError as error:
        raise validation_error(error, within="desist") from error


def _asks_for_work(asked: Asked, tenant: Tenant) -> bool:
    """Whether a limit or a form of ours holds all the same, or something is asked for that off has not."""
    budget = tenant.budget is not None or (
        asked.own_budget is not None and asked.own_budget.value != NO_LIMIT
    )
    said = (asked.own_effort, asked.own_format, asked.object, asked.alpha, asked.threshold)
    return budget or any(each is not None for each in said)
