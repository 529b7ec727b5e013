"""The HTTP client towards the server behind the proxy, over one pooled aiohttp session.

Knows addresses, keys, time limits and the ways HTTP can fail. Does not know what the bodies mean. Leaving a
stream early closes its connection, which is what makes the server stop generating.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from desist.data.errors import EngineError, UpstreamError
from desist.proxy.errors import UpstreamReply
from desist.proxy.settings import UpstreamSettings
from desist.proxy.sse import SseParser

__all__ = ["UpstreamClient", "UpstreamStream"]

_CONNECT_TRIES = 2
_MAX_ERROR_BYTES = 2**20


class UpstreamStream:
    """An answer that has begun: its event data, or its whole body where the server does not stream."""

    def __init__(self, response: aiohttp.ClientResponse, idle_s: float, url: str) -> None:
        self._response, self._idle_s, self._url = response, idle_s, url
        self.streams = response.content_type == "text/event-stream"

    async def events(self) -> AsyncIterator[bytes]:
        """The data of each event, up to `[DONE]` or the end. Raises `UpstreamError` when it breaks off."""
        parser = SseParser()
        while True:
            async with _telling(self._url, self._idle_s, "sent nothing"):
                part = await self._response.content.readany()
            if not part:
                break
            for event in parser.feed(part):
                if event.done:
                    return
                yield event.data
        if parser.pending:
            raise UpstreamError(f"the upstream {self._url} broke off in the middle of an event.", 502)

    async def whole(self) -> bytes:
        async with _telling(self._url, self._idle_s, "sent nothing"):
            return await self._response.read()


class UpstreamClient:
    """Talks to one upstream server. `start` before use, `close` at the end."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=self._settings.total_s, sock_connect=self._settings.connect_s, sock_read=None
            )
            connector = aiohttp.TCPConnector(limit=self._settings.max_connections)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def get(self, path: str, timeout_s: float) -> bytes:
        """Body of a GET. Raises `UpstreamError`."""
        url = self._settings.url + path
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
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[UpstreamStream]:
        """POST and get the answer as it comes. Raises `UpstreamReply` for an error status.

        A POST is sent again only where the connection failed before one byte of an answer was there.
        """
        url = self._settings.url + path
        response = await self._post(url, msgspec.json.encode(body), self._headers(headers))
        try:
            if response.status >= 400:
                async with _telling(url, self._settings.idle_s, "sent nothing"):
                    told = await response.content.read(_MAX_ERROR_BYTES)
                raise UpstreamReply(response.status, told, response.headers.get("Retry-After"))
            yield UpstreamStream(response, self._settings.idle_s, url)
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
                if not stale or attempt + 1 == _CONNECT_TRIES:
                    raise
        raise AssertionError("the loop returns or raises")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineError("the upstream engine is not started, or is closed already.")
        return self._session

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {**given, "content-type": "application/json"}
        if self._settings.api_key is not None:
            headers["authorization"] = f"Bearer {self._settings.api_key.get_secret_value()}"
        return headers


@asynccontextmanager
async def _telling(url: str, limit_s: float, late: str) -> AsyncIterator[None]:
    """Turns the failures of one wait into `UpstreamError`: 502 unreachable or broken, 504 too late."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise UpstreamError(
            f"the upstream {url} {late} within {limit_s:g} s. Raise the time limit in `upstream`, or look at "
            "the server.",
            504,
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise UpstreamError(
            f"the upstream {url} cannot be reached: {error.os_error or error}. Check --upstream and that the "
            "server runs.",
            502,
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamError(
            f"the connection to the upstream {url} broke: {type(error).__name__}. Look at the server's log.",
            502,
        ) from error
