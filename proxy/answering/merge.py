"""Several event streams as one, in order of arrival.

Knows async generators only. Whatever ends a read early (error, cancellation, `aclose`) closes every source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

__all__ = ["merge"]

T = TypeVar("T")
_QUEUE_EVENTS = 256


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, item) in order of arrival. The first error of any stream is raised."""
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await streams[0].aclose()
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(_QUEUE_EVENTS)

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async for item in stream:
                await queue.put((index, item))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)
        finally:
            await stream.aclose()

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            arrived = await queue.get()
            if isinstance(arrived, BaseException):
                raise arrived
            if arrived is None:
                left -= 1
            else:
                yield arrived
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:  # a task cancelled before its first step never reached its own finally
            await stream.aclose()
