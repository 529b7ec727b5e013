"""Answers of the server as chunks, streamed or whole, and what it says that it serves.

Knows the client's streams and the wire's objects. Does not know what a chunk means.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from desist.data.errors import UpstreamError
from desist.proxy.engines.base import ModelCard
from desist.proxy.engines.upstream.client import UpstreamClient, UpstreamStream
from desist.proxy.engines.upstream.wire import Chunk, read_chunk, read_whole

__all__ = ["arrivals", "list_models", "read_chunks"]

_MODELS_S = 30.0


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


async def arrivals(stream: UpstreamStream) -> AsyncGenerator[list[Chunk], None]:
    """As `read_chunks`, those that came at once together; an error comes after what was read before it."""
    if not stream.streams:
        yield [read_whole(await stream.whole())]
        return
    async for arrived in stream.arrivals():
        chunks: list[Chunk] = []
        try:
            for data in arrived:
                chunks.append(read_chunk(data))
        except UpstreamError:
            yield chunks
            raise
        yield chunks
