"""The HTTP side of the relay: one call to a server behind, and what the client sends for it meanwhile.

Knows connections, time limits and the ways in which HTTP can fail. Does not know what the bytes mean, nor
which headers may go: `relay` decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from starlette.types import Receive
from yarl import URL

from desist.data.errors import DesistError, UpstreamError
from desist.proxy.errors import ApiError
from desist.proxy.settings import UpstreamSettings

__all__ = ["Call", "Inbox", "Relay", "next_part"]

_WAITING_PARTS = 8
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `data`: its body, whole or as it comes (None: it has none)."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    data: bytes | AsyncIterator[bytes] | None


class Inbox:
    """What the client sends: the parts of its body, then the news that it has gone."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive, self._limit = receive, limit_bytes
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_PARTS)
        self._wanted = False
        self.failure: DesistError | None = None

    async def read(self) -> None:
        """Returns when the client has gone."""
        while (message := await self._receive())["type"] != "http.disconnect":
            if not self._wanted:
                continue
            if part := message.get("body", b""):
                await self._parts.put(part)
            if not message.get("more_body", False):
                await self._parts.put(None)

    def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Call before `read` begins."""
        self._wanted = True
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[bytes]:
        size = 0
        while (part := await self._parts.get()) is not None:
            size += len(part)
            if size > self._limit:
                self.failure = ApiError(
                    413,
                    f"the request body is larger than {self._limit} bytes. Send less, or raise "
                    "limits.max_body_bytes.",
                    code="body_too_large",
                )
                raise self.failure
            yield part


class Relay:
    """Connections to the servers behind, made when first needed. `close` at the end."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def session(self, target: UpstreamSettings) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=target.max_connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=target.connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookies are not another's
                auto_decompress=False,
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
                max_line_size=2**16,
                max_field_size=2**16,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def ask(
        self, target: UpstreamSettings, call: Call, inbox: Inbox
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's beginning. Sent again only where nothing can have been read of the first try."""
        session = self.session(target)
        response: aiohttp.ClientResponse | None = None
        for attempt in range(_TRIES):
            try:
                async with asyncio.timeout(target.first_byte_s):
                    response = await session.request(
                        call.method, call.url, headers=call.headers, data=call.data, allow_redirects=False
                    )
                break
            except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
                if inbox.failure is not None:
                    raise inbox.failure from error
                stale = isinstance(error, aiohttp.ServerDisconnectedError)
                if not stale or attempt + 1 == _TRIES or not isinstance(call.data, (bytes, type(None))):
                    raise _told(call.url, error, target.first_byte_s) from error
        assert response is not None  # the loop breaks or raises
        try:
            yield response
        finally:
            response.close()


async def next_part(response: aiohttp.ClientResponse, url: URL, idle_s: float) -> bytes:
    """The next part of an answer, empty at its end. Raises `UpstreamError` where it breaks off."""
    try:
        async with asyncio.timeout(idle_s):
            return await response.content.readany()
    except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
        raise _told(url, error, idle_s) from error


def _told(url: URL, error: Exception, limit_s: float) -> UpstreamError:
    """502 unreachable or broken, 504 too late."""
    where = str(url.with_query(None))
    if isinstance(error, TimeoutError):
        return UpstreamError(
            f"the upstream {where} sent nothing within {limit_s:g} s. Raise the time limit in `upstream`, or "
            "look at the server.",
            504,
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamError(
            f"the upstream {where} cannot be reached: {error.os_error or error}. Check --upstream and that "
            "the server runs.",
            502,
        )
    return UpstreamError(
        f"the connection to the upstream {where} broke: {type(error).__name__}. Look at the server's log.",
        502,
    )
