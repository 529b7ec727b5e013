"""Reads a request's body, once, within its limit; whoever asks again gets the same bytes.

Knows bytes and sizes; nothing of what they mean.
"""

from __future__ import annotations

from fastapi import Request

from desist.proxy.errors import ApiError

__all__ = ["read_body"]

_READ = "desist.body"


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises `ApiError` 413."""
    known = request.scope.get(_READ)
    if isinstance(known, bytes):
        return known
    too_large = ApiError(
        413,
        f"the request body is larger than {limit_bytes} bytes. Send less, or raise limits.max_body_bytes.",
        code="body_too_large",
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit_bytes:
            raise too_large
    request.scope[_READ] = bytes(data)
    return bytes(data)
