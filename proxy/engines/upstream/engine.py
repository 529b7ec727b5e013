"""Engine for any OpenAI-compatible server: hands requests on, and can end thinking by a budget.

Closing happens by leaving the first call (which stops the server) and a second call that continues after
the hand-off. Knows texts, not token ids or hidden states: it scores nothing, so policies that read hidden
states are refused at start-up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from desist.data.errors import UpstreamError
from desist.proxy.engines.base import Event, GenerationRequest, ModelCard, Need
from desist.proxy.engines.upstream.bodies import continued_body, first_body, path_of, profile_of
from desist.proxy.engines.upstream.client import UpstreamClient, UpstreamStream
from desist.proxy.engines.upstream.run import UpstreamRun
from desist.proxy.engines.upstream.wire import Chunk, read_chunk, read_whole
from desist.proxy.settings import UpstreamSettings

__all__ = ["UpstreamEngine", "list_models", "read_chunks"]

_READY_S = 5.0
_MODELS_S = 30.0


class UpstreamEngine:
    """An `Engine` over an OpenAI-compatible server. See `UpstreamSettings`."""

    passes_through = True

    def __init__(self, settings: UpstreamSettings, *, min_answer_tokens: int = 256) -> None:
        self._settings = settings
        self._min_answer_tokens = min_answer_tokens
        self._profile = profile_of(settings)
        self._client = UpstreamClient(settings)

    @property
    def offers(self) -> frozenset[Need]:
        """Nothing that a scorer could read yet: only budgets stop here."""
        return frozenset()

    async def start(self) -> None:
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def ready(self) -> str | None:
        try:
            await self._client.get("/models", _READY_S)
        except UpstreamError as error:
            return str(error)
        return None

    async def models(self) -> tuple[ModelCard, ...]:
        return await list_models(self._client)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        run = UpstreamRun(request, self._settings, self._profile, self._min_answer_tokens)
        if not run.closed_at_once:
            body = first_body(request, running_usage=run.counts_needed and self._settings.continuous_usage)
            async with self._client.post(path_of(request), body, request.headers) as stream:
                async for chunk in read_chunks(stream):
                    for delta in run.first(chunk):
                        yield delta
                    if run.stopped:
                        break
        if not run.stopped:
            for delta in run.first_end():
                yield delta
            yield run.finished()
            return
        for delta in run.handoff():
            yield delta
        body = continued_body(request, self._profile, run.kept, run.used_tokens, opened=run.opened_by_prompt)
        async with self._client.post(path_of(request), body, request.headers) as stream:
            async for chunk in read_chunks(stream):
                for delta in run.second(chunk):
                    yield delta
                if run.answered:
                    break
        for delta in run.second_end():
            yield delta
        yield run.finished()


async def list_models(client: UpstreamClient) -> tuple[ModelCard, ...]:
    """What the server serves. Raises `UpstreamError`."""
    body = await client.get("/models", _MODELS_S)
    try:
        listed = msgspec.json.decode(body)["data"]
        return tuple(
            ModelCard(str(each["id"]), each.get("max_model_len"), str(each.get("owned_by", "upstream")))
            for each in listed
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise UpstreamError(
            "the upstream's /models is no list of models. Check the upstream URL.", 502
        ) from error


async def read_chunks(stream: UpstreamStream) -> AsyncIterator[Chunk]:
    """The chunks of an answer; one for the whole of it where the server does not stream."""
    if not stream.streams:
        yield read_whole(await stream.whole())
        return
    async for data in stream.events():
        yield read_chunk(data)
