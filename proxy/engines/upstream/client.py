"""The HTTP client towards the server behind the proxy, over one pooled aiohttp session.

Knows addresses, keys, time limits and the ways HTTP can fail. Does not know what the bodies mean. Leaving a
stream early closes its connection, which is what makes the server stop generating.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from desist.data.errors import EngineError, UpstreamError
from desist.proxy.engines.upstream.counters import UpstreamCounters
from desist.proxy.engines.upstream.retry import Retries
from desist.proxy.errors import UpstreamReply
from desist.proxy.settings import UpstreamSettings
from desist.proxy.sse import SseParser

__all__ = ["Unanswered", "UpstreamClient", "UpstreamStream"]

_CONNECT_TRIES = 2
_MAX_ERROR_BYTES = 2**20


class Unanswered(UpstreamError):
    """The connection failed before one byte of an answer was there: the same call may be made again."""

    unanswered = True


class UpstreamStream:
    """An answer that has begun: its event data, or its whole body where the server does not stream."""

    def __init__(self, response: aiohttp.ClientResponse, idle_s: float, url: str) -> None:
        self._response, self._idle_s, self._url = response, idle_s, url
        self.streams = response.content_type == "text/event-stream"

    async def events(self) -> AsyncIterator[bytes]:
        """The data of each event, up to `[DONE]` or the end. Raises `UpstreamError` when it breaks off."""
        async for arrived in self.arrivals():
            for data in arrived:
                yield data

    async def arrivals(self) -> AsyncIterator[list[bytes]]:
        """The data of the events that each read completes, perhaps of none; see `events`."""
        parser, content = SseParser(), self._response.content
        with _IdleWatch(content, self._idle_s) as idle:
            while True:
                try:
                    part = await content.readany()
                except (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError) as error:
                    raise _told(error, self._url, self._idle_s, "sent nothing") from error
                if not part:
                    break
                idle.waiting = False
                arrived: list[bytes] = []
                for event in parser.feed(part):
                    if event.done:
                        yield arrived
                        return
                    arrived.append(event.data)
                yield arrived
                idle.begin()
        if parser.pending:
            raise UpstreamError(f"the upstream {self._url} broke off in the middle of an event.", 502)

    async def whole(self) -> bytes:
        async with _telling(self._url, self._idle_s, "sent nothing"):
            return await self._response.read()


class UpstreamClient:
    """Talks to one upstream server. `start` before use, `close` at the end."""

    def __init__(self, settings: UpstreamSettings, counters: UpstreamCounters | None = None) -> None:
        self._settings, self._counters = settings, counters or UpstreamCounters()
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        if self._session is None:
            # The whole of a request is the lifeline's to limit, which knows both of its calls.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_s, sock_read=None)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.max_connections),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookies are not another's
            )

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def get(self, path: str, timeout_s: float) -> bytes:
        """Body of a GET of a path under /v1, or of a whole address. Raises `UpstreamError`."""
        url = path if path.startswith("http") else self._settings.url + path
        async with (
            _telling(url, timeout_s, "did not answer"),
            self._open().get(url, headers=self._headers({})) as r,
        ):
            body = await r.read()
            if r.status >= 400:
                raise UpstreamReply(r.status, body[:_MAX_ERROR_BYTES])
            return body

    @asynccontextmanager
    async def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], *, retries: int = 0
    ) -> AsyncIterator[UpstreamStream]:
        """POST and get the answer as it comes. Raises `UpstreamReply` for an error status.

        The call is made again up to `retries` times (see `Retries`), never once an answer has begun.
        """
        url = self._settings.url + path
        again = Retries(retries, time.time)
        while True:
            try:
                response = await self._answer(url, msgspec.json.encode(body), self._headers(headers))
                self._counters.attempted(None)
                break
            except UpstreamError as error:
                self._counters.attempted(error)
                if not await again.pause(error):
                    raise
                self._counters.retried(error)
        try:
            yield UpstreamStream(response, self._settings.idle_s, url)
        finally:
            response.close()

    async def post_whole(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """The complete answer to a POST to `url`. Raises `UpstreamError`."""
        response = await self._answer(url, msgspec.json.encode(body), self._headers(headers))
        try:
            return await UpstreamStream(response, self._settings.idle_s, url).whole()
        finally:
            response.close()

    async def _answer(self, url: str, data: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """The response, its headers read. Raises `UpstreamReply` for an error status or a redirection."""
        response = await self._post(url, data, headers)
        if response.status < 300:
            return response
        try:
            if response.status < 400:
                raise UpstreamError(
                    f"the upstream {url} answers with a redirection ({response.status}). Name the address "
                    "that it leads to.",
                    502,
                )
            async with _telling(url, self._settings.idle_s, "sent nothing"):
                told = await response.content.read(_MAX_ERROR_BYTES)
            raise UpstreamReply(response.status, told, response.headers.get("Retry-After"))
        finally:
            response.close()

    async def _post(self, url: str, data: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        session = self._open()
        for attempt in range(_CONNECT_TRIES):
            try:
                async with _telling(url, self._settings.first_byte_s, "did not begin to answer"):
                    return await session.post(url, data=data, headers=headers, allow_redirects=False)
            except UpstreamError as error:
                # A kept connection that the server had already closed: nothing of this request was read.
                stale = isinstance(error.__cause__, aiohttp.ServerDisconnectedError)
                if stale and attempt + 1 < _CONNECT_TRIES:
                    continue
                if isinstance(error.__cause__, (aiohttp.ClientConnectionError, ConnectionError)):
                    raise Unanswered(str(error), error.status) from error
                raise
        raise AssertionError("the loop returns or raises")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineError("the upstream engine is not started, or is closed already.")
        return self._session

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {**given, "content-type": "application/json"}
        if self._settings.key is not None:
            headers["authorization"] = f"Bearer {self._settings.key}"
        return headers


class _IdleWatch:
    """Ends a wait for the next bytes after `limit_s` seconds: one timer a stream, none a read."""

    __slots__ = ("_content", "_limit_s", "_loop", "_since", "_timer", "waiting")

    def __init__(self, content: aiohttp.StreamReader, limit_s: float) -> None:
        self._content, self._limit_s = content, limit_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting = True  # for the upstream, not for who reads what it sent
        self._since = self._loop.time()

    def begin(self) -> None:
        """A wait begins."""
        self._since, self.waiting = self._loop.time(), True

    def __enter__(self) -> _IdleWatch:
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        due = self._since + self._limit_s if self.waiting else self._loop.time() + self._limit_s
        if due <= self._loop.time():
            self._content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(due, self._look)


def _told(error: Exception, url: str, limit_s: float, late: str) -> UpstreamError:
    """A failure of one wait as an `UpstreamError`: 502 unreachable or broken, 504 too late."""
    if isinstance(error, TimeoutError):
        return UpstreamError(
            f"the upstream {url} {late} within {limit_s:g} s. Raise the time limit in `upstream`, or look at "
            "the server.",
            504,
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamError(
            f"the upstream {url} cannot be reached: {error.os_error or error}. Check --upstream and that the "
            "server runs.",
            502,
        )
    return UpstreamError(
        f"the connection to the upstream {url} broke: {type(error).__name__}. Look at the server's log.", 502
    )


@asynccontextmanager
async def _telling(url: str, limit_s: float, late: str) -> AsyncIterator[None]:
    """Turns the failures of one wait into `UpstreamError`."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError) as error:
        raise _told(error, url, limit_s, late) from error
