"""A server that keeps each request as its bytes came, and answers with bytes that the request decides."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from desist.proxy.settings import Settings, UpstreamSettings
from tests.fakes.engine import FakeEngine

__all__ = ["Arrived", "FrontEngine", "RawUpstream", "front"]


@dataclass(frozen=True)
class Arrived:
    """One request. `target`: path and query as they stood in the request line."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value.decode() for key, value in self.headers if key == name.encode()]


@dataclass
class RawUpstream:
    """Answers by the header `x-reply` (a kind of answer), which a test sets. `left`: clients gone early."""

    arrived: list[Arrived] = field(default_factory=list)
    left: int = 0
    parts: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        request = Request(scope, receive)
        self.parts.clear()
        async for part in request.stream():
            self.parts.append(part)
        body = b"".join(self.parts)
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        self.arrived.append(Arrived(scope["method"], target, list(scope["headers"]), body))
        if scope["path"] == "/v1/models":
            await Response(b'{"object":"list","data":[{"id":"up"}]}', media_type="application/json")(
                scope, receive, send
            )
            return
        await self._reply(request, body)(scope, receive, send)

    def _reply(self, request: Request, body: bytes) -> Response:
        kind = request.headers.get("x-reply", "json")
        mark = b"%08x" % zlib.crc32(body)
        told = b'{ "id":"x-' + mark + b'",  "choices":[ ], "z":1.0, "z":2, "\\u00e9":"\xc3\xa9" }\n'
        if kind.isdigit():
            old = b'{"object":"error","message":"no ' + mark + b'","type":"Bad","param":null,"code":400}'
            new = b'{"error":{"message":"no ' + mark + b'","type":"BadRequestError","code":400}}'
            shape = {0: new, 1: old, 2: b"<html>" + mark}[int(kind) % 3]
            return Response(shape, int(kind), {"retry-after": "7"}, "application/json")
        if kind == "contradiction":
            message = b'{"role":"assistant","content":null,"tool_calls":[]}'
            told = b'{"choices":[{"index":0,"message":' + message + b',"finish_reason":"tool_calls"}]}'
        if kind == "empty":
            return Response(status_code=204)
        if kind == "gzip":
            return Response(
                gzip.compress(told * 9, mtime=0), 200, {"content-encoding": "gzip"}, "application/json"
            )
        if kind == "odd":
            reply = Response(told, 218, {"connection": "x-hop, close", "x-hop": "1", "te": "trailers"})
            reply.raw_headers += [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-odd", b"\xc3\xa9")]
            return reply
        if kind == "big":
            return Response(mark * 200_000, media_type="application/octet-stream")
        if kind in ("sse", "broken", "slow"):
            headers = {"cache-control": "no-store"} | (
                {"content-length": "99999"} if kind == "broken" else {}
            )
            return StreamingResponse(self._events(kind, mark), 200, headers, "text/event-stream")
        return Response(told, media_type="application/json")

    async def _events(self, kind: str, mark: bytes) -> AsyncIterator[bytes]:
        done = False
        try:
            yield b': hello\r\ndata: {"id":"' + mark + b'","choices":[{"delta":{"reasoning":"h"}}]}\n\n'
            if kind == "slow":
                self.go_on = asyncio.Event()
                await self.go_on.wait()
            await asyncio.sleep(0.002)
            if kind == "broken":
                done = True
                raise ConnectionResetError
            yield b'data: {"choices":[{"delta":{"content":"\xc3\xa9'
            await asyncio.sleep(0.002)
            yield b' "}}],"usage":null}\n\nevent: odd\ndata: x\ndata: y\n\n'
            yield b"data: [DONE]\n\ndata: after\n\n"
            done = True
        finally:
            if not done:
                self.left += 1


@dataclass
class FrontEngine(FakeEngine):
    """A scripted engine with a server behind it, for what is passed on to that one."""

    upstream: UpstreamSettings | None = None
    passes_through: bool = True


def front(url: str, **more: Any) -> tuple[Settings, FrontEngine]:
    """Settings and the engine of a proxy before the server at `url`. `upstream`: more of its settings."""
    upstream = UpstreamSettings(url=url + "/v1", **more.pop("upstream", {}))
    return Settings(engine="upstream", upstream=upstream, **more), FrontEngine(upstream=upstream)
