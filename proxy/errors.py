"""One place that turns every failure into OpenAI-style error JSON with its true status.

Knows desist's error tree, pydantic's validation errors and the shape
`{"error": {"message", "type", "param", "code"}}`. Does not know routes or engines. Long values and texts
are never repeated in full.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from desist.data.errors import (
    ControlError,
    DataError,
    DesistError,
    EngineError,
    NotOffered,
    UpstreamError,
)

__all__ = [
    "ApiError",
    "CatchAllMiddleware",
    "UpstreamReply",
    "api_error",
    "error_body",
    "error_response",
    "install_error_handlers",
    "shorten",
    "validation_error",
]

log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_REMEDIES = {
    "messages": 'Give a non-empty list of {"role": ..., "content": ...} objects.',
    "prompt": "Give a non-empty string, a list of strings, a list of token ids, or a list of such lists.",
    "model": "Give one of the names that GET /v1/models lists.",
    "temperature": "Give a number from 0 to 2.",
    "top_p": "Give a number above 0, at most 1.",
    "top_k": "Give an integer: -1 or 0 switches it off.",
    "n": "Give a positive integer.",
    "max_tokens": "Give a positive integer.",
    "max_completion_tokens": "Give a positive integer.",
    "seed": "Give an integer of at most 64 bits, or leave it out.",
    "stop": "Give a non-empty string or a list of at most 16 of them.",
    "stream": "Give true or false.",
    "stream_options": 'Give an object such as {"include_usage": true}.',
    "chat_template_kwargs": 'Give an object such as {"enable_thinking": false}.',
    "desist": 'Give an object with some of: mode ("off", "shadow", "active"), budget (integer, -1 = none), '
    'effort (a name), alpha (0 < alpha < 1), threshold (0 to 1), answer ("write", "extract"), '
    'reasoning_format ("field", "inline", "none"), object (true, false).',
}
_BUDGET_REMEDY = "Give an integer: -1 means no limit, 0 closes thinking at once, null says nothing."


class ApiError(DesistError):
    """A failure with its HTTP status, the field it is about and a machine-readable code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})
        super().__init__(message)


class UpstreamReply(UpstreamError):
    """The upstream answered with an error of its own: `body` is passed on where it has OpenAI's shape."""

    def __init__(self, status: int, body: bytes, retry_after: str | None = None) -> None:
        self.body, self.retry_after = body, retry_after
        super().__init__(_upstream_message(status, body), status)


def _upstream_message(status: int, body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    found: Any = None
    if isinstance(decoded, dict):
        error = decoded.get("error", decoded.get("message", decoded.get("detail")))
        found = error.get("message") if isinstance(error, dict) else error
    text = found if isinstance(found, str) and found else shorten(body.decode(errors="replace").strip(), 300)
    return f"the upstream server answered {status}: {text or HTTPStatus(status).phrase}"


def shorten(value: object, limit: int = 60) -> str:
    """`repr` for messages, cut so that no long text is repeated."""
    text = value if isinstance(value, str) and limit > 60 else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The OpenAI error object."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def api_error(error: Exception) -> ApiError:
    """What the client is told about `error`. Unknown errors are told without their text."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return validation_error(error)
    if isinstance(error, UpstreamReply):
        retry = {"Retry-After": error.retry_after} if error.retry_after else {}
        return ApiError(error.status or 502, str(error), code="upstream_error", headers=retry)
    if isinstance(error, UpstreamError):
        return ApiError(error.status or 502, str(error), code="upstream_error")
    if isinstance(error, NotOffered):
        return ApiError(400, str(error), code="not_offered")
    if isinstance(error, (ControlError, DataError)):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, EngineError):
        return ApiError(503, str(error), code="engine_error", headers={"Retry-After": "1"})
    if isinstance(error, DesistError):
        return ApiError(500, str(error), code="internal_error")
    return ApiError(
        500,
        f"internal error ({type(error).__name__}). The server's log has the details under this request's "
        "x-request-id.",
        code="internal_error",
    )


def validation_error(error: ValidationError, within: str = "") -> ApiError:
    """The first problem of a request body: names the field, the value and the remedy."""
    first = error.errors(include_url=False, include_context=False)[0]
    names = [within] if within else []
    names += [str(part) for part in first["loc"] if not _is_type_tag(part)]
    field = ".".join(names)
    remedy = _remedy(names)
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return ApiError(400, f"'{field}' is missing. {remedy}", param=field, code="missing_field")
    if first["type"] == "extra_forbidden":
        message = f"'{field}' is not a known field (value {shorten(first['input'])}). {remedy}"
        return ApiError(400, message, param=field, code="unknown_field")
    message = f"'{field}' is {shorten(first['input'])}: {what[:1].lower()}{what[1:]}. {remedy}"
    return ApiError(400, message, param=field or None, code="invalid_value")


def _is_type_tag(part: int | str) -> bool:
    return isinstance(part, str) and (
        part.startswith(("list[", "dict[", "function-")) or part in ("str", "int")
    )


def _remedy(names: list[str]) -> str:
    if any("budget" in name for name in names):
        return _BUDGET_REMEDY
    return _REMEDIES.get(names[0] if names else "", "Correct this field or leave it out.")


def error_response(error: Exception) -> Response:
    """The HTTP answer for `error`. An upstream body in OpenAI's shape is passed on byte for byte."""
    known = api_error(error)
    body = msgspec.json.encode(error_body(str(known), known.status, param=known.param, code=known.code))
    if isinstance(error, UpstreamReply) and _has_openai_shape(error.body):
        body = error.body
    return Response(body, known.status, known.headers, media_type="application/json")


def _has_openai_shape(body: bytes) -> bool:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    error = decoded.get("error") if isinstance(decoded, dict) else None
    return isinstance(error, dict) and isinstance(error.get("message"), str)


class CatchAllMiddleware:
    """The innermost net: an unexpected error is logged and told without its text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            log.exception("unexpected error in request %s", scope.get("desist.request_id"))
            await error_response(error)(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Every error of `app` leaves in OpenAI's shape: ours, 404 and 405 (the rest: `CatchAllMiddleware`)."""

    async def on_known(request: Request, error: Exception) -> Response:
        return error_response(error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path}"
        remedy = {
            404: "Known paths: /v1/chat/completions, /v1/completions, /v1/models, /healthz, /readyz, "
            "/metrics.",
            405: f"Allowed here: {(error.headers or {}).get('Allow', 'another method')}.",
        }.get(error.status_code, "")
        message = f"{shorten(where, 120)}: {error.detail}. {remedy}".strip()
        return error_response(ApiError(error.status_code, message, headers=error.headers))

    app.add_exception_handler(DesistError, on_known)
    app.add_exception_handler(ValidationError, on_known)
    app.add_exception_handler(HTTPException, on_http)
