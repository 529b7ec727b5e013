"""Every path that is not ours: passed on untouched if it is listed, else refused with 404.

Knows the list (`relay.paths`) and what is never passed on. It stands behind all other routes, as the
router's last resort, so that a wrong method on a path of ours is still told as such.
"""

from __future__ import annotations

from functools import lru_cache

from fastapi import Request
from starlette.types import Receive, Scope, Send

from desist.proxy.errors import ApiError, shorten
from desist.proxy.relay.paths import PathList, is_forbidden
from desist.proxy.relay.relay import RelayedResponse, raw_target, relay_target
from desist.proxy.state import state_of

__all__ = ["OWN_PATHS", "relay_others"]

OWN_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/models",
    "/desist/v1/requests/ID/stop",
    "/desist/v1/mode",
    "/openapi.json",
    "/healthz",
    "/readyz",
    "/metrics",
)


_listed = lru_cache(maxsize=8)(PathList)


async def relay_others(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application of all other paths. Raises `ApiError` 404."""
    if scope["type"] != "http":  # no websocket is served
        await send({"type": "websocket.close", "code": 1000})
        return
    request = Request(scope, receive, send)
    state = state_of(request)
    path, _ = raw_target(scope)
    listed = _listed(state.settings.relay.paths)
    target = relay_target(state)
    if target is None or path not in listed:
        raise ApiError(404, _why(scope["method"], path, listed, target is not None), code="path_not_found")
    await RelayedResponse(state, target)(scope, receive, send)


def _why(method: str, path: str, listed: PathList, relays: bool) -> str:
    where = f"{method} {shorten(path, 120)}"
    if path in listed:
        return (
            f"{where}: no server stands behind this proxy that could serve this path; the engine runs its "
            f"model itself. Known paths: {', '.join(OWN_PATHS)}."
        )
    if relays and is_forbidden(path):
        return (
            f"{where}: this is an operator's path, which the proxy never passes on. Call the server itself."
        )
    more = f" Passed on: {', '.join(listed.shown())} (setting relay.paths)." if relays else ""
    return f"{where}: Not Found. Known paths: {', '.join(OWN_PATHS)}.{more}"
