"""Headers in and out: request ids, what may go on upstream, and what a stop tells in response headers.

Knows header names only. Client headers that may go on are listed, never everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HOP_BY_HOP", "MODE_HEADER", "RequestIdMiddleware", "forwarded", "header_text", "stop_headers"]

MODE_HEADER = "x-desist-mode"
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers between two neighbours, never handed on (RFC 9110, 7.6.1); so are those that `connection` names."""
_ID_HEADERS = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")
_GOOD_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_FORWARDED = (
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-session-id",
    "openai-organization",
    "openai-project",
)
_TOLD = (
    ("stop_reason", "x-desist-stop-reason"),
    ("stop_position", "x-desist-stop-position"),
    ("certified", "x-desist-certified"),
    ("certificate", "x-desist-certificate"),
    ("alpha", "x-desist-alpha"),
    ("saved_tokens_estimate", "x-desist-saved-tokens-estimate"),
    ("generated_tokens", "x-desist-generated-tokens"),
    ("reasoning_tokens", "x-desist-reasoning-tokens"),
    ("answer_tokens", "x-desist-answer-tokens"),
    ("forced_tokens", "x-desist-forced-tokens"),
    ("rewound_tokens", "x-desist-rewound-tokens"),
    ("uncontrolled", "x-desist-uncontrolled"),
    ("budget", "x-desist-budget"),
    ("budget_by", "x-desist-budget-by"),
    ("budget_exhausted_in_thinking", "x-desist-budget-exhausted-in-thinking"),
    ("notices", "x-desist-notice"),
    ("overhead_ms", "x-desist-overhead-ms"),
)


class RequestIdMiddleware:
    """Gives every request an id (the client's, if it is a sane one) and returns it as `x-request-id`."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app, self._new_id = app, new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        asked = next((given[name] for name in _ID_HEADERS if name in given), "")
        identity = asked if _GOOD_ID.fullmatch(asked) else self._new_id()
        scope["desist.request_id"] = identity

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        await self._app(scope, receive, with_id)


def forwarded(headers: Headers, request_id: str, *, authorization: bool) -> dict[str, str]:
    """The client's headers that may go on to an upstream server, lower case.

    `authorization`: whether the client's own key goes on (only where the proxy asks for none itself).
    """
    names = (*_FORWARDED, "authorization") if authorization else _FORWARDED
    return {name: headers[name] for name in names if name in headers} | {"x-request-id": request_id}


def header_text(text: str) -> str:
    """The text as a header may carry it: one line of ASCII."""
    return " ".join(text.split()).encode("ascii", "replace").decode()


def stop_headers(told: Mapping[str, Any]) -> dict[str, str]:
    """Response headers for the `desist` object of a complete response; unknown values have no header."""
    headers = {MODE_HEADER: str(told["mode"])}
    for key, name in _TOLD:
        value = told.get(key)
        if value is None or value == []:
            continue
        if isinstance(value, list):
            value = "; ".join(value)
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        headers[name] = header_text(text)
    return headers
