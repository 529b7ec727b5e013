"""Carries a request to the server behind and its answer back, untouched: method, query, bodies, headers.

Knows which headers go on, limits, and two ends that may go away. Does not know what the bytes mean, nor
whether the request may be carried: `relay_paths` and `mode_off` decide that. Neither body is held: both are
passed on as they come, and compressed ones stay so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
from fastapi import Request
from multidict import CIMultiDict
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from desist.proxy.errors import ApiError
from desist.proxy.intake.headers import HOP_BY_HOP, MODE_HEADER
from desist.proxy.lifecycle.admission import Place
from desist.proxy.lifecycle.disconnect import CANCELLED, ClientGone
from desist.proxy.lifecycle.lifeline import Lifeline, time_limits
from desist.proxy.relay.connection import Call, Inbox, next_part
from desist.proxy.settings import UpstreamSettings
from desist.proxy.telemetry.record import record_of

if TYPE_CHECKING:
    from desist.proxy.state import ProxyState

__all__ = ["RelayedResponse", "raw_target", "relay_target"]

# aiohttp writes `host` itself; `expect` is between the client and us; the rest is decided in
# `_request_headers`.
_NOT_ON = HOP_BY_HOP | {"host", "expect", "authorization", "x-request-id"}
# Our server dates its answers itself, and the id is ours.
_NOT_BACK = HOP_BY_HOP | {"date", "x-request-id"}


def relay_target(state: ProxyState) -> UpstreamSettings | None:
    """The server behind that the engine hands requests on to; None: there is none, or it is not started."""
    if not state.passes_through:
        return None
    found = getattr(state.engine, "upstream", None)
    return found if isinstance(found, UpstreamSettings) else None


def raw_target(scope: Scope) -> tuple[str, str]:
    """(path, query) as they stand in the request line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query: bytes = scope["query_string"]
    return raw.partition(b"?")[0].decode("latin-1"), query.decode("latin-1")


class RelayedResponse(Response):
    """The answer of the server behind, as it comes. Raises `UpstreamError` before its first byte only.

    `body`: the request's, where it has been read already (None: it is passed on as it comes). `told`: our own
    headers. When the client leaves, the server behind is left at once. An answer that breaks off is broken
    off here too, never ended as if it were whole.
    """

    def __init__(
        self,
        state: ProxyState,
        target: UpstreamSettings,
        *,
        body: bytes | None = None,
        told: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._state, self._target, self._body = state, target, body
        self._told = [(name.lower().encode(), text.encode()) for name, text in (told or {}).items()]
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inbox = Inbox(receive, self._state.settings.limits.max_body_bytes)
        ticket = self._state.running.enter(Request(scope), ())
        work = asyncio.ensure_future(self._carry(scope, inbox, send))
        gone = asyncio.ensure_future(inbox.read())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            work.result()
        except (ClientGone, OSError):
            self._state.metrics.disconnects.inc()
            scope[CANCELLED] = True
        except Exception:
            self._state.metrics.engine_errors.inc()
            if not self._started:
                raise
            record_of(scope).choices += 1  # one that was not seen to end
            # What has begun cannot be taken back. Returning before the end makes the server close the
            # connection, by which the client knows that this was not all.
        finally:
            for each in (work, gone):
                each.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._state.running.leave(ticket)

    async def _carry(self, scope: Scope, inbox: Inbox, send: Send) -> None:
        call = self._call(scope, inbox)
        limits = time_limits(self._state.settings, Headers(scope=scope))
        lifeline = Lifeline(replace(limits, total_s=min(limits.total_s, self._target.total_s)))
        place = await self._place()
        self._state.admission.watch(lifeline)
        try:
            async with lifeline:
                await self._bring(call, inbox, send, lifeline)
        finally:
            self._state.admission.forget(lifeline)
            place.leave()

    async def _place(self) -> Place:
        try:
            return await self._state.admission.enter()
        except ApiError as error:
            self._state.metrics.refused.labels(error.code or "").inc()
            raise

    async def _bring(self, call: Call, inbox: Inbox, send: Send, lifeline: Lifeline) -> None:
        async with self._state.relay.ask(self._target, call, inbox) as response:
            lifeline.alive()
            self._started = True
            start = {"type": "http.response.start", "status": response.status}
            await send({**start, "headers": _response_headers(response) + self._told})
            while part := await next_part(response, call.url, self._target.idle_s):
                lifeline.alive()
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _call(self, scope: Scope, inbox: Inbox) -> Call:
        path, query = raw_target(scope)
        base = self._target.url.removesuffix("/v1")
        url = URL(base + path + ("?" + query if query else ""), encoded=True)
        given = [(name.decode("latin-1"), _text(value)) for name, value in scope["headers"]]
        length = next((value for name, value in given if name == "content-length"), None)
        chunked = any(name == "transfer-encoding" for name, _ in given)
        headers = self._request_headers(scope, given)
        data: bytes | AsyncIterator[bytes] | None = self._body
        if data is None and (chunked or (length or "0") != "0"):
            data = inbox.parts()
        elif data is None and length is not None:
            data = b""
        if isinstance(data, bytes):  # it may be shorter than what the client sent
            headers.popall("content-length", None)
        return Call(scope["method"], url, headers, data)

    def _request_headers(self, scope: Scope, given: list[tuple[str, str]]) -> CIMultiDict[str]:
        """Everything that is not between the client and us, with the key that the server behind is to see."""
        named = _named(value for name, value in given if name == "connection")
        headers = CIMultiDict(
            (name, value)
            for name, value in given
            if name not in _NOT_ON and name not in named and not name.startswith("x-desist-")
        )
        headers["x-request-id"] = scope["desist.request_id"]
        if self._target.key is not None:
            headers["authorization"] = f"Bearer {self._target.key}"
        elif self._state.forwards_authorization:
            for name, value in given:
                if name == "authorization":
                    headers.add(name, value)
        return headers


def _response_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    raw = [(name.lower(), value) for name, value in response.raw_headers]
    named = _named(value.decode("latin-1") for name, value in raw if name == b"connection")
    return [
        (name, value)
        for name, value in raw
        if (text := name.decode("latin-1")) not in _NOT_BACK and text not in named and text != MODE_HEADER
    ]


def _named(connection: Iterable[str]) -> frozenset[str]:
    """Headers that `Connection` makes hop-by-hop."""
    return frozenset(word.strip().lower() for value in connection for word in value.split(","))


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
