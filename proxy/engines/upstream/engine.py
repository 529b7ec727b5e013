"""Engine for any OpenAI-compatible server: hands requests on, and ends thinking by budget, loop or hand.

Closing happens by leaving the first call (which stops the server) and a second call that continues after
the hand-off, from token ids where the server gives them. Knows texts and ids, not hidden states: it scores
nothing, so policies that read hidden states are refused at start-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

from prometheus_client import CollectorRegistry

from desist.controller.core import Mode
from desist.controller.profile import ModelProfile
from desist.data.errors import UpstreamError
from desist.proxy.engines.base import Delta, Event, GenerationRequest, ModelCard, Need
from desist.proxy.engines.upstream.answer import Answer
from desist.proxy.engines.upstream.bodies import opening_body, path_of, profile_of
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.client import UpstreamClient, UpstreamStream
from desist.proxy.engines.upstream.counters import UpstreamCounters
from desist.proxy.engines.upstream.encoding import Encoder
from desist.proxy.engines.upstream.knowledge import Knowledge
from desist.proxy.engines.upstream.plan import make_plan
from desist.proxy.engines.upstream.reading import arrivals, list_models
from desist.proxy.engines.upstream.retry import Retries
from desist.proxy.engines.upstream.run import UpstreamRun
from desist.proxy.engines.upstream.splice import (
    call_headers,
    closed_again,
    continuation,
    has_handoff,
    opens_thinking,
)
from desist.proxy.errors import UpstreamReply
from desist.proxy.live.blocks import upstream_of
from desist.proxy.settings import ModelSettings, UpstreamSettings

__all__ = ["UpstreamEngine"]

_READY_S = 5.0
_CLOSINGS = 2  # of thinking that a model opens again after its stop; what it thinks then is shown
# Fields of ours that a server may refuse; it is then asked without them.
_OPTIONAL = ("return_token_ids", "continuous_usage_stats", "thinking_token_budget")


class UpstreamEngine:
    """An `Engine` over an OpenAI-compatible server. See `UpstreamSettings`.

    `loops`: reasoning that goes round is closed, in mode "active".
    """

    passes_through = True

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        min_answer_tokens: int = 256,
        loops: bool = True,
        models: Mapping[str, ModelSettings] | None = None,
    ) -> None:
        self._settings, self._models = settings, models or {}
        self._min_answer_tokens, self._loops = min_answer_tokens, loops
        for name in ("", *self._models):
            profile_of(self._settings_of(name))  # an unknown profile is refused now
        self._profiles: dict[str, ModelProfile] = {}
        self._cap: Mode = "active"
        self._counters = UpstreamCounters()
        self._client = UpstreamClient(settings, self._counters)
        self._encoder = Encoder(self._client, settings.url)
        self._knowledge = Knowledge(self._examine if settings.self_test else None)
        self._refused: set[tuple[str, str]] = set()  # (model, field)
        self._running: dict[str, list[UpstreamRun]] = {}
        self._starting: asyncio.Task[None] | None = None

    @property
    def offers(self) -> frozenset[Need]:
        """Nothing that a scorer could read: budgets, loops and people stop here."""
        return frozenset()

    @property
    def upstream(self) -> UpstreamSettings:
        """The server behind, for requests that are passed on untouched."""
        return self._settings

    async def start(self) -> None:
        await self._client.start()
        if self._settings.self_test:
            self._starting = asyncio.create_task(self._begin())

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._knowledge.close()
        await self._client.close()

    async def ready(self) -> str | None:
        try:
            await self._client.get("/models", _READY_S)
        except UpstreamError as error:
            return str(error)
        return None

    async def models(self) -> tuple[ModelCard, ...]:
        return await list_models(self._client)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Show what is counted of calls to the server behind."""
        self._counters.register(registry)

    async def set_cap(self, mode: Mode) -> None:
        """The kill switch: no run, nor one that waited for a place meanwhile, uses a mode above `mode`."""
        self._cap = mode
        for runs in self._running.values():
            for run in runs:
                run.cap(mode)

    async def stop(self, request_id: str) -> bool:
        """Close the thinking of a running request by hand, at the next clean place; False where nothing
        can be.

        `request_id` is the id of the whole request, or that of one choice (`ID/NUMBER`).
        """
        runs = self._running.get(request_id) or [
            run
            for identity, each in self._running.items()
            if identity.rpartition("/")[0] == request_id
            for run in each
        ]
        stopped = [run.stop() for run in runs]
        return any(stopped)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        async with aclosing(self.batches(request)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(self, request: GenerationRequest) -> AsyncGenerator[list[Event], None]:
        """The events of one choice; those that one read of the upstream made are one list."""
        profile = self._profile(request.model)
        plan = make_plan(request, profile, self._knowledge.of(request.model))
        if (
            plan.ids
            and not (plan.message or plan.text)
            and not await has_handoff(request, profile, self._encoder)
        ):
            plan = replace(plan, ids=False, why="the server does not tell the token ids of a text")
        run = UpstreamRun(
            request, self._settings_of(request.model), profile, plan,
            min_answer_tokens=self._min_answer_tokens, loops=self._loops,
            opened=await opens_thinking(request, profile, self._encoder),
        )  # fmt: skip
        run.cap(self._cap)
        self._running.setdefault(request.request_id, []).append(run)
        try:
            if not run.closed_at_once:
                async with aclosing(self._first(run)) as first:
                    async for events in first:
                        yield events
            if run.stopped:
                async with aclosing(self._second(run)) as second:
                    async for events in second:
                        yield events
            else:
                yield [run.finished()]
        finally:
            self._forget(run)

    async def _first(self, run: UpstreamRun) -> AsyncGenerator[list[Event], None]:
        async with self._opened(run) as stream, aclosing(arrivals(stream)) as parts:
            async for chunks in parts:
                events: list[Event] = []
                try:
                    for chunk in chunks:
                        events += run.feed(chunk)
                        if run.stopped:
                            break
                except UpstreamError:
                    yield events
                    raise
                yield events
                if run.stopped:
                    return
        yield list(run.end())

    @asynccontextmanager
    async def _opened(self, run: UpstreamRun) -> AsyncIterator[UpstreamStream]:
        """The first call, made again without a field of ours that the server refuses."""
        request = run.request
        path, headers, retries = path_of(request), call_headers(request), self._settings.retries
        while True:
            body, optional = self._opening_body(run)
            call = self._client.post(path, body, headers, retries=retries)
            try:
                stream = await call.__aenter__()
                break
            except UpstreamReply as reply:
                told = reply.body.decode(errors="replace")
                field = next((name for name in optional if name in told), None)
                if reply.status not in (400, 422) or field is None:
                    raise
                self._refused.add((request.model, field))
        try:
            yield stream
        finally:
            await call.__aexit__(None, None, None)

    def _opening_body(self, run: UpstreamRun) -> tuple[dict[str, Any], list[str]]:
        """The first body, and which fields in it can be left out."""
        request = run.request
        refused = {name for model, name in self._refused if model == request.model}
        usage = (
            run.counts_needed and self._settings.continuous_usage and "continuous_usage_stats" not in refused
        )
        ids = run.wants_ids and "return_token_ids" not in refused
        body = opening_body(
            request, run.plan,
            budget=run.native if run.plan.native is not None else None,
            watched=run.watched, running_usage=usage, ids=ids,
        )  # fmt: skip
        if run.watched and "thinking_token_budget" in refused:
            body.pop("thinking_token_budget", None)
        asked = {
            "return_token_ids": ids and not request.body.get("return_token_ids"),
            "continuous_usage_stats": usage,
            "thinking_token_budget": run.watched and "thinking_token_budget" in body,
        }
        return body, [name for name in _OPTIONAL if asked[name]]

    async def _second(self, run: UpstreamRun) -> AsyncGenerator[list[Event], None]:
        """The continuation; made again where it fails before one byte of the answer was handed on, and where
        thinking is opened again."""
        way, body, handoff_tokens = await continuation(run, self._encoder)
        path = path_of(run.request) if way != "ids" else "/completions"
        prompt_tokens = len(body["prompt"]) if way == "ids" else None
        again = Retries(self._settings.retries, time.time)
        headers = call_headers(run.request, "answer")
        opened = False
        closings, wasted = _CLOSINGS, 0
        while True:
            answer = Answer(
                run, way, self._settings.chars_per_token,
                prompt_tokens=prompt_tokens, handoff_tokens=handoff_tokens,
                closes=closings > 0, wasted=wasted,
            )  # fmt: skip
            if not opened:
                opened = True
                yield list(answer.opening())
            handed_on = begun = False
            try:
                async with (
                    self._client.post(path, body, headers) as stream,
                    aclosing(arrivals(stream)) as parts,
                ):
                    begun = True
                    async for chunks in parts:
                        events: list[Event] = []
                        try:
                            for chunk in chunks:
                                events += answer.feed(chunk)
                                if answer.answered or answer.reopened:
                                    break
                        except UpstreamError:
                            if handed_on or _says(events):
                                handed_on = True
                                yield events
                            raise
                        if handed_on or _says(events):
                            handed_on = True
                            yield events
                        else:
                            yield []  # alive
                        if answer.answered or answer.reopened:
                            break
                if answer.reopened:
                    again_body = await closed_again(run, way, body, answer.generated, self._encoder)
                    closings = closings - 1 if again_body is not None else 0
                    body, wasted = again_body or body, wasted + answer.generated
                    prompt_tokens = len(body["prompt"]) if way == "ids" else None
                    continue
                yield [*answer.end(), answer.finished()]
                return
            except UpstreamError as error:
                self._counters.continuation_failures.inc()
                if handed_on or not await again.pause(error, begun=begun):
                    raise
                self._counters.retried(error)

    def _settings_of(self, model: str) -> UpstreamSettings:
        return upstream_of(self._settings, self._models, model)

    def _profile(self, model: str) -> ModelProfile:
        if model not in self._profiles:
            if len(self._profiles) > 256:  # names are the clients'
                self._profiles.clear()
            self._profiles[model] = profile_of(self._settings_of(model), model)
        return self._profiles[model]

    def _forget(self, run: UpstreamRun) -> None:
        identity = run.request.request_id
        left = [each for each in self._running.get(identity, ()) if each is not run]
        if left:
            self._running[identity] = left
        else:
            self._running.pop(identity, None)

    async def capabilities(self, model: str) -> Capabilities | None:
        """What the self-test saw, once it has ended; None: there is none."""
        return await self._knowledge.wait(model)

    def history_field(self, model: str) -> Literal["reasoning", "reasoning_content"] | None:
        """The field in which the server gives thinking, and so reads that of earlier turns; None: unknown."""
        known = self._knowledge.of(model)
        return None if known is None else known.reasoning_field

    async def _examine(self, model: str) -> Capabilities:
        from desist.proxy.engines.upstream.selftest import examine

        return await examine(self._client, self._settings_of(model), self._profile(model), model)

    async def _begin(self) -> None:
        try:
            self._knowledge.begin([card.model_id for card in await self.models()])
        except UpstreamError:
            return  # requests will ask again


def _says(events: Sequence[Event]) -> bool:
    """Whether anything in these events reaches the client."""
    return any(isinstance(each, Delta) and (each.text or each.extra or each.choice_extra) for each in events)
