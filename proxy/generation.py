"""Runs the choices of one accepted request: all at once, or as a stream of wire events.

Knows engines and how choices are merged; the two routes give it a `Shape` that writes their objects. Closes
the engine's streams whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import Request
from starlette.responses import Response

from desist.data.errors import DesistError
from desist.proxy.choice import ChoiceBuffer, is_silent
from desist.proxy.disconnect import ClientGone, StreamedResponse, unless_gone
from desist.proxy.engines.base import Delta, Event, Finished
from desist.proxy.errors import ApiError, api_error, error_body
from desist.proxy.headers import MODE_HEADER, header_text, stop_headers
from desist.proxy.intake import Intake
from desist.proxy.merge import merge
from desist.proxy.monitoring import audited, saw
from desist.proxy.sse import DONE, write_event
from desist.proxy.state import ProxyState
from desist.proxy.usage import desist_object, summary_object, usage_object

__all__ = ["Shape", "answer"]

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Shape(Protocol):
    """The objects of one route."""

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        """One choice of a complete response."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first streamed choice object of a choice, if the route has one."""

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """A streamed choice object."""

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        """The last streamed choice object of a choice."""

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        """id, object, created and model."""


async def answer(request: Request, state: ProxyState, intake: Intake[Any], shape: Shape) -> Response:
    """The response to an accepted request, streamed or not."""
    limit = state.settings.limits.max_in_flight
    if state.in_flight >= limit:
        raise ApiError(
            503,
            f"{state.in_flight} requests are being served, the limit is {limit}. Try again, or raise "
            "limits.max_in_flight.",
            code="overloaded",
            headers={"Retry-After": "1"},
        )
    run = _Run(state, intake, shape)
    try:
        if intake.body.stream:
            return await run.stream(request)
        try:
            return await unless_gone(request.receive, run.complete())
        finally:
            run.leave()
    except ClientGone:
        state.metrics.disconnects.inc()
        return Response(status_code=499)
    except Exception:
        state.metrics.engine_errors.inc()
        raise


class _Run:
    """One request while it is served."""

    def __init__(self, state: ProxyState, intake: Intake[Any], shape: Shape) -> None:
        self._state, self._intake, self._shape = state, intake, shape
        self._choices = audited(state, intake)
        self._finished: dict[int, Finished] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._seen: set[str] = set()
        self._began = state.clock()
        self._inside = True  # counted as in flight; at once, so that no two requests take the last place
        state.in_flight += 1
        state.metrics.in_flight.inc()

    def leave(self) -> None:
        """Count the request out. Called at the end of everything, more than once is fine."""
        if self._inside:
            self._inside = False
            if 0 not in self._finished and self._state.audits is not None:
                self._state.audits.left(self._choices[0].request_id)
            self._state.in_flight -= 1
            self._state.metrics.in_flight.dec()

    async def complete(self) -> Response:
        buffers = [ChoiceBuffer() for _ in self._intake.choices]
        async with aclosing(self._events()) as events:
            async for index, event in events:
                buffers[index].add(event)
        choices = [self._shape.whole(index, buffer) for index, buffer in enumerate(buffers)]
        for index, buffer in enumerate(buffers):
            self._end(index, buffer.finished)
        summary = summary_object([self._told[index] for index in range(len(buffers))])
        body = self._shape.envelope(streamed=False)
        for buffer in buffers:
            body |= buffer.finished.extra or {}
        body |= {"choices": choices, "usage": self._usage()}
        if self._state.settings.stream.desist_object:
            body["desist"] = summary
            if len(choices) > 1:
                for index, choice in enumerate(choices):
                    choice["desist"] = self._told[index]
        return Response(_encode(body), media_type="application/json", headers=stop_headers(summary))

    async def stream(self, request: Request) -> Response:
        """Waits for the first event, so that an early failure keeps its status, for one heartbeat at most."""
        events = self._events()
        first = asyncio.ensure_future(anext(events))
        heartbeat = self._state.settings.stream.heartbeat_s

        async def release() -> None:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await events.aclose()
            self.leave()

        try:
            await unless_gone(request.receive, asyncio.wait({first}, timeout=heartbeat or None))
            if first.done():
                first.result()
        except BaseException:
            await release()
            raise
        headers: dict[str, str] = {MODE_HEADER: self._intake.resolved.control.mode}
        if self._intake.resolved.uncontrolled:
            headers["x-desist-uncontrolled"] = header_text(self._intake.resolved.uncontrolled)
        return StreamedResponse(self._wire(events, first, release), headers, release, heartbeat)

    async def _wire(
        self,
        events: AsyncGenerator[tuple[int, Event], None],
        first: asyncio.Future[tuple[int, Event]],
        release: Callable[[], Awaitable[None]],
    ) -> AsyncGenerator[bytes, None]:
        complete = False
        try:
            for index in range(len(self._intake.choices)):
                if (opening := self._shape.opening(index)) is not None:
                    yield self._chunk([opening])
            if (piece := self._piece(*await first)) is not None:
                yield piece
            async for index, event in events:
                if (piece := self._piece(index, event)) is not None:
                    yield piece
            if self._intake.include_usage:
                yield self._chunk([], usage=self._usage())
            complete = True
        except Exception as error:
            self._state.metrics.engine_errors.inc()
            if not isinstance(error, DesistError):
                log.exception("unexpected error in request %s", self._intake.choices[0].request_id)
            known = api_error(error)
            body = error_body(str(known), known.status, param=known.param, code=known.code)
            body["error"]["status"] = known.status
            complete = True
            yield write_event(_encode(body))
        finally:
            await release()
            if not complete:
                self._state.metrics.disconnects.inc()
        yield write_event(DONE)

    def _piece(self, index: int, event: Event) -> bytes | None:
        if isinstance(event, Delta):
            return None if is_silent(event) else self._chunk([self._shape.piece(index, event)])
        self._end(index, event)
        choice = self._shape.closing(index, event.finish_reason)
        more = dict(event.extra or {})
        if self._state.settings.stream.desist_object:
            if len(self._intake.choices) > 1:
                choice["desist"] = self._told[index]
            if len(self._told) == len(self._intake.choices):
                more["desist"] = summary_object([self._told[i] for i in sorted(self._told)])
        return self._chunk([choice], more=more)

    def _chunk(
        self,
        choices: list[dict[str, Any]],
        *,
        usage: dict[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        body = self._shape.envelope(streamed=True)
        body["choices"] = choices
        if self._intake.include_usage:
            body["usage"] = usage
        if more:
            body |= more
        return write_event(_encode(body))

    async def _events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """The merged events of all choices, each checked to end."""
        open_choices = set(range(len(self._intake.choices)))
        streams = [self._state.engine.generate(choice) for choice in self._choices]
        async with aclosing(merge(streams)) as merged:
            async for index, event in merged:
                if isinstance(event, Finished):
                    open_choices.discard(index)
                else:
                    self._note_first(event)
                yield index, event
        if open_choices:
            _ = ChoiceBuffer().finished  # raises: the engine broke its contract

    def _note_first(self, delta: Delta) -> None:
        if delta.text and delta.channel not in self._seen:
            self._seen.add(delta.channel)
            elapsed = self._state.clock() - self._began
            self._state.metrics.first_token.labels(delta.channel).observe(max(0.0, elapsed))

    def _end(self, index: int, finished: Finished) -> None:
        self._finished[index] = finished
        self._told[index] = desist_object(finished, self._intake.resolved)
        self._state.metrics.count(finished, self._intake.resolved)
        if index == 0:  # several choices of one request are one problem
            saw(self._state, self._intake, finished)

    def _usage(self) -> dict[str, Any]:
        usages = [self._finished[index].usage for index in sorted(self._finished)]
        return usage_object(usages, self._intake.choices_per_prompt)
