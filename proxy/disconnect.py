"""Notices that a client went away, and stops what was being done for it.

Knows ASGI's `http.disconnect`. Works for plain answers and, through `StreamedResponse`, for streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from desist.proxy.sse import PING

__all__ = ["ClientGone", "StreamedResponse", "gone", "unless_gone"]

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def gone(receive: Receive) -> None:
    """Returns when the client has gone. The request body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client goes. Raises `ClientGone` then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class StreamedResponse(Response):
    """An event stream from an async generator that is closed whatever happens, at once if the client goes.

    `release` is awaited at the end too: a generator that was never begun cannot free what it was given.
    After `heartbeat_s` seconds without a piece a comment is sent (0: never); pieces are whole events, so it
    always stands between two.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        release: Callable[[], Awaitable[None]],
        heartbeat_s: float = 0.0,
    ) -> None:
        super().__init__(None, 200, dict(headers), media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._stream, self._release, self._heartbeat_s = body, release, heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = 0

        async def pump() -> None:
            nonlocal sent
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            beat = asyncio.ensure_future(beats()) if self._heartbeat_s else None
            try:
                async for piece in self._stream:
                    sent += 1
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            finally:
                if beat is not None:
                    beat.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def beats() -> None:
            while True:
                before = sent
                await asyncio.sleep(self._heartbeat_s)
                if sent == before:
                    await send({"type": "http.response.body", "body": PING, "more_body": True})

        try:
            await unless_gone(receive, pump())
        except (ClientGone, OSError):
            pass  # nobody is left to be told; the body has counted it
        finally:
            await self._stream.aclose()
            await self._release()
