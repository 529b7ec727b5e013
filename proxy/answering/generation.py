"""Runs the choices of one accepted request: all at once, or as a stream of wire events.

Knows engines and how choices are merged; the two routes give it a `Shape` that writes their objects. Closes
the engine's streams whatever happens.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import Request
from starlette.responses import Response

from desist.data.errors import DesistError
from desist.proxy.answering.choice import ChoiceBuffer, is_silent
from desist.proxy.answering.merge import merge
from desist.proxy.answering.typed_shape import TypedShape
from desist.proxy.answering.usage import begun_object, desist_object, summary_object, usage_object
from desist.proxy.engines.base import Delta, Engine, Event, Finished, GenerationRequest
from desist.proxy.errors import ApiError, api_error, error_body
from desist.proxy.intake.accept import Intake
from desist.proxy.intake.headers import stop_headers
from desist.proxy.lifecycle.admission import Place
from desist.proxy.lifecycle.disconnect import CANCELLED, ClientGone, Outcome, StreamedResponse, unless_gone
from desist.proxy.lifecycle.lifeline import Lifeline, time_limits
from desist.proxy.lifecycle.running import Ticket
from desist.proxy.monitor.monitoring import audited, saw
from desist.proxy.sse import DONE, write_event
from desist.proxy.state import ProxyState
from desist.proxy.telemetry.record import RequestRecord, record_of

__all__ = ["Shape", "answer"]

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Shape(Protocol):
    """The objects of one route.

    A shape with `steady = True` promises that the piece of a delta with text alone differs from others of its
    choice and channel in that text only: such pieces are then made once, and filled in.
    """

    def whole(self, index: int, buffer: ChoiceBuffer) -> dict[str, Any]:
        """One choice of a complete response."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first streamed choice object of a choice, if the route has one."""

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """A streamed choice object; None: nothing of the delta is shown."""

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        """The last streamed choice object of a choice."""

    def envelope(self, *, streamed: bool) -> dict[str, Any]:
        """id, object, created and model."""


async def answer(
    request: Request, state: ProxyState, intake: Intake[Any], shape: Shape | TypedShape
) -> Response:
    """The response to an accepted request, streamed or not, once there is a place for it.

    Raises `ApiError` (429, 503) where there is none, and whatever the engine raises before the first byte.
    """
    lifeline = Lifeline(time_limits(state.settings, request.headers))
    try:
        record = _noted(request, state, intake)
        came = record.clock()
        ticket = state.running.enter(request, tuple(each.request_id for each in intake.choices))
        try:
            place = await _place(request, state)
        except BaseException:
            state.running.leave(ticket)
            raise
        record.handed_on(record.clock() - came)
        run = _Run(state, intake, shape, place, lifeline, record)
        run.ticket = ticket
        if intake.body.stream:
            return run.stream()
        try:
            return await unless_gone(request.receive, run.complete())
        except (ClientGone, ApiError):
            raise
        except Exception:
            state.metrics.engine_errors.inc()
            raise
        finally:
            run.leave()
    except ClientGone:
        state.metrics.disconnects.inc()
        request.scope[CANCELLED] = True
        return Response(status_code=499)


def _noted(request: Request, state: ProxyState, intake: Intake[Any]) -> RequestRecord:
    """The request's record, with what is known of it now."""
    record, choices = record_of(request.scope), len(intake.choices)
    model, mode = state.metrics.models.label(intake.model), intake.resolved.control.mode
    record.accepted(model, mode, intake.tenant.name, stream=bool(intake.body.stream), choices=choices)
    return record


async def _place(request: Request, state: ProxyState) -> Place:
    """A place for the request, which may have to wait for one: for as long as its client does."""
    admission = state.admission
    try:
        if admission.free:
            return await admission.enter()
        return await unless_gone(request.receive, admission.enter())
    except ApiError as error:
        state.metrics.refused.labels(error.code or "").inc()
        raise


class _Run:
    """One request while it is served."""

    def __init__(
        self,
        state: ProxyState,
        intake: Intake[Any],
        shape: Shape | TypedShape,
        place: Place,
        lifeline: Lifeline,
        record: RequestRecord,
    ) -> None:
        self._state, self._intake = state, intake
        self._typed = shape if isinstance(shape, TypedShape) else None
        self._shape: Shape = shape  # type: ignore[assignment] # not asked where the other one is there
        self.ticket: Ticket | None = None
        self._record = record
        self._place, self._lifeline = place, lifeline
        self._choices = audited(state, intake)
        self._open = set(range(len(self._choices)))
        self._finished: dict[int, Finished] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._seen: set[str] = set()
        self._steady = bool(getattr(shape, "steady", False))
        self._templates: dict[tuple[int, str], list[bytes]] = {}
        self._began = state.clock()
        self._inside = True
        asked = intake.resolved.asked.object
        self._object = state.settings.stream.desist_object if asked is None else asked
        state.admission.watch(lifeline)

    def leave(self) -> None:
        """Count the request out. Called at the end of everything, more than once is fine."""
        if self._inside:
            self._inside = False
            if 0 not in self._finished and self._state.audits is not None:
                self._state.audits.left(self._choices[0].request_id)
            self._state.admission.forget(self._lifeline)
            self._place.leave()
            if self.ticket is not None:
                self._state.running.leave(self.ticket)

    async def complete(self) -> Response:
        buffers = [ChoiceBuffer() for _ in self._intake.choices]
        async with self._lifeline, aclosing(self._batches()) as batches:
            async for index, batch in batches:
                for event in batch:
                    buffers[index].add(event)
        for index, buffer in enumerate(buffers):
            self._end(index, buffer.finished)
        summary = summary_object([self._told[index] for index in range(len(buffers))])
        if self._typed is not None:
            whole = self._typed.response(buffers[0], self._usage(), summary if self._object else None)
            return Response(_encode(whole), media_type="application/json", headers=stop_headers(summary))
        choices = [self._shape.whole(index, buffer) for index, buffer in enumerate(buffers)]
        body = self._shape.envelope(streamed=False)
        for buffer in buffers:
            body |= buffer.finished.extra or {}
        body |= {"choices": choices, "usage": self._usage()}
        if self._object:
            body["desist"] = summary
            if len(choices) > 1:
                for index, choice in enumerate(choices):
                    choice["desist"] = self._told[index]
        return Response(_encode(body), media_type="application/json", headers=stop_headers(summary))

    def stream(self) -> Response:
        """The streamed response, which has not begun yet: an early failure keeps its status."""
        headers = stop_headers(
            begun_object(self._intake.resolved) | {"overhead_ms": self._record.overhead_ms}
        )
        return StreamedResponse(
            self._wire(),
            headers,
            release=self._release,
            told=self._failure,
            lifeline=self._lifeline,
            heartbeat_s=self._state.settings.stream.heartbeat_s,
        )

    async def _release(self, outcome: Outcome) -> None:
        self.leave()
        if outcome == "gone":
            self._state.metrics.disconnects.inc()
        elif outcome == "failed":
            self._state.metrics.engine_errors.inc()

    def _failure(self, error: Exception) -> bytes:
        """The last events of a stream that fails after it has begun."""
        if not isinstance(error, DesistError):
            log.exception("unexpected error in request %s", self._choices[0].request_id, exc_info=error)
        known = api_error(error)
        if self._typed is not None:
            return self._typed.failure(known)
        body = error_body(str(known), known.status, param=known.param, code=known.code)
        body["error"]["status"] = known.status
        return write_event(_encode(body)) + write_event(DONE)

    async def _wire(self) -> AsyncGenerator[bytes, None]:
        """The events of the stream, those that are ready at the same time in one piece."""
        ahead = self._openings() if self._typed is None else self._typed.begin()
        async with aclosing(self._batches()) as batches:
            async for index, batch in batches:
                piece = b"".join(self._pieces(index, batch))
                if piece:
                    yield ahead + piece
                    ahead = b""
        if self._typed is not None:
            return
        tail = self._chunk([], usage=self._usage()) if self._intake.include_usage else b""
        yield ahead + tail + write_event(DONE)

    def _openings(self) -> bytes:
        return b"".join(
            self._chunk([opening])
            for index in range(len(self._choices))
            if (opening := self._shape.opening(index)) is not None
        )

    def _pieces(self, index: int, batch: Iterable[Event]) -> Iterable[bytes]:
        for event in batch:
            if self._typed is not None:
                yield self._typed_piece(self._typed, index, event)
            elif not isinstance(event, Delta):
                yield self._closing(index, event)
            elif self._steady and event.extra is None and event.choice_extra is None:
                if event.text:
                    template = self._templates.get((index, event.channel)) or self._template(index, event)
                    yield _encode(event.text).join(template)
            elif not is_silent(event) and (piece := self._shape.piece(index, event)) is not None:
                yield self._chunk([piece])

    def _typed_piece(self, typed: TypedShape, index: int, event: Event) -> bytes:
        if isinstance(event, Delta):
            return b"" if is_silent(event) else typed.take(event)
        self._end(index, event)
        return typed.end(event, self._usage(), self._told[index] if self._object else None)

    def _template(self, index: int, like: Delta) -> list[bytes]:
        """The bytes around the text in pieces of this choice and channel."""
        mark = secrets.token_hex(16)
        shown = self._shape.piece(index, Delta(like.channel, mark))
        piece = self._chunk([shown] if shown is not None else [])
        template = self._templates[index, like.channel] = piece.split(_encode(mark))
        return template

    def _closing(self, index: int, event: Finished) -> bytes:
        self._end(index, event)
        choice = self._shape.closing(index, event.finish_reason)
        more = dict(event.extra or {})
        if self._object:
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

    async def _batches(self) -> AsyncGenerator[tuple[int, Sequence[Event]], None]:
        """The merged events of all choices, each checked to end, once."""
        streams = [batches_of(self._state.engine, choice) for choice in self._choices]
        async with aclosing(merge(streams)) as merged:
            async for index, batch in merged:
                self._lifeline.alive()
                for event in batch:
                    if isinstance(event, Finished):
                        self._open.remove(index)
                    elif event.channel not in self._seen and event.text:
                        self._note_first(event)
                yield index, batch
        if self._open:
            _ = ChoiceBuffer().finished  # raises: the engine broke its contract

    def _note_first(self, delta: Delta) -> None:
        self._seen.add(delta.channel)
        self._record.wrote()
        elapsed = self._state.clock() - self._began
        self._state.metrics.first_token.labels(delta.channel).observe(max(0.0, elapsed))

    def _end(self, index: int, finished: Finished) -> None:
        self._finished[index] = finished
        told = desist_object(finished, self._intake.resolved) | {"overhead_ms": self._record.overhead_ms}
        self._told[index] = told
        self._record.ended(told)
        self._state.metrics.count(finished, self._intake.resolved)
        if index == 0:  # several choices of one request are one problem
            saw(self._state, self._intake, finished)

    def _usage(self) -> dict[str, Any]:
        usages = [self._finished[index].usage for index in sorted(self._finished)]
        return usage_object(usages, self._intake.choices_per_prompt)


def batches_of(engine: Engine, request: GenerationRequest) -> AsyncGenerator[Sequence[Event], None]:
    """The engine's events, several at once where it offers that."""
    offered = getattr(engine, "batches", None)
    if offered is not None:
        batches: AsyncGenerator[Sequence[Event], None] = offered(request)
        return batches
    return _one_by_one(engine.generate(request))


async def _one_by_one(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Sequence[Event], None]:
    async with aclosing(events):
        async for event in events:
            yield (event,)
