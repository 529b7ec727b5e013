"""Notices that a client went away, and stops what was being done for it.

Knows ASGI: `http.disconnect`, and how a stream is written piece by piece. Works for plain answers and,
through `StreamedResponse`, for streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Literal, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from desist.proxy.lifecycle.lifeline import Lifeline
from desist.proxy.sse import PING

__all__ = ["CANCELLED", "DIRECT", "ClientGone", "Outcome", "StreamedResponse", "gone", "unless_gone"]

T = TypeVar("T")
Outcome = Literal["complete", "failed", "gone"]
CANCELLED = "desist.cancelled"  # in the scope: the client left before its answer was complete (status 499)
# In the scope: the server's own `send`. Layers look at how a response begins and ends; what is between goes
# past them, since each of them costs at every token.
DIRECT = "desist.direct_send"
_LAST_WORDS_S = 1.0


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

    The response begins with the first piece, so that an earlier failure keeps its status (it is raised), or
    with the first heartbeat: after `heartbeat_s` seconds without a piece a comment is sent (0: never).
    Pieces are whole events, so it always stands between two. A failure after that goes through `told`, which
    gives the last events.
    `release` is awaited at the end with how it ended: a generator that was never begun cannot free what it
    was given. `lifeline` can end it from outside.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        release: Callable[[Outcome], Awaitable[None]],
        told: Callable[[Exception], bytes],
        lifeline: Lifeline,
        heartbeat_s: float = 0.0,
    ) -> None:
        super().__init__(None, 200, dict(headers), media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._stream, self._release, self._told = body, release, told
        self._lifeline, self._heartbeat_s = lifeline, heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        wire = _Wire(send, scope.get(DIRECT, send), head)
        outcome: Outcome = "failed"

        async def pump() -> None:
            beats = _Heartbeat(wire, self._heartbeat_s)
            try:
                async with self._lifeline:
                    async for piece in self._stream:
                        await wire.write(piece)
            finally:
                beats.stop()

        async def last_words(error: Exception) -> None:
            await self._stream.aclose()
            try:
                async with asyncio.timeout(_LAST_WORDS_S):  # a client that does not read is not waited for
                    await wire.write(self._told(error))
            except TimeoutError:
                raise ClientGone from None

        async def whole() -> None:
            nonlocal outcome
            try:
                await pump()
                outcome = "complete"
            except ClientGone:
                raise
            except Exception as error:
                if not wire.begun:
                    raise
                await last_words(error)
            await wire.end()

        try:
            await unless_gone(receive, whole())
        except ClientGone:  # nobody is left to be told
            outcome = "gone"
            scope[CANCELLED] = True
        finally:
            await self._stream.aclose()
            await self._release(outcome)


class _Wire:
    """The body of one response. Begins with the first write; writes do not mix.

    `direct`: what takes the pieces between the first and the last message.
    """

    __slots__ = ("_direct", "_head", "_send", "begun", "writes")

    def __init__(self, send: Send, direct: Send, head: Mapping[str, object]) -> None:
        self._send, self._direct, self._head = send, direct, head
        self.begun = False
        self.writes = 0

    async def write(self, piece: bytes, more: bool = True) -> None:
        """Raises `ClientGone` where nobody is there to read."""
        self.writes += 1
        try:
            if not self.begun:
                self.begun = True
                await self._send({"type": "http.response.start", **self._head})
            send = self._direct if more else self._send
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        except OSError as error:
            raise ClientGone from error

    async def end(self) -> None:
        await self.write(b"", more=False)


class _Heartbeat:
    """Writes a comment when nothing was written for so long. One timer; a task only while one is written."""

    __slots__ = ("_every_s", "_seen", "_task", "_timer", "_wire")

    def __init__(self, wire: _Wire, every_s: float) -> None:
        self._wire, self._every_s = wire, every_s
        self._seen = wire.writes
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def _arm(self) -> None:
        if self._every_s:
            self._seen = self._wire.writes
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _look(self) -> None:
        silent = self._wire.writes == self._seen
        self._arm()
        if silent and (self._task is None or self._task.done()):
            self._seen += 1  # the comment itself
            self._task = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        with contextlib.suppress(ClientGone):  # whoever waits for the disconnect sees it too
            await self._wire.write(PING)

    def stop(self) -> None:
        for each in (self._timer, self._task):
            if each is not None:
                each.cancel()
