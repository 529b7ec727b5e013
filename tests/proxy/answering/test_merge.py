"""Merging event streams: order within a stream is kept, and every source is closed whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy.answering.merge import merge


class Source:
    """Counts from 0 to `length`, then ends or fails; remembers whether it was closed."""

    def __init__(self, length: int, *, fails: bool = False, endless: bool = False) -> None:
        self.length, self.fails, self.endless = length, fails, endless
        self.open = 0

    async def items(self) -> AsyncGenerator[int, None]:
        self.open += 1
        try:
            for number in range(self.length):
                await asyncio.sleep(0)
                yield number
            if self.fails:
                raise RuntimeError("broke")
            if self.endless:
                await asyncio.sleep(60)
        finally:
            self.open -= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_every_stream_arrives_whole_and_in_order(lengths: list[int]) -> None:
    async def run() -> list[tuple[int, int]]:
        return [pair async for pair in merge([Source(length).items() for length in lengths])]

    got = asyncio.run(run())
    for index, length in enumerate(lengths):
        assert [number for stream, number in got if stream == index] == list(range(length))
    assert len(got) == sum(lengths)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_closes_all(count: int) -> None:
    sources = [Source(2, fails=True), *(Source(2, endless=True) for _ in range(count - 1))]

    async def run() -> None:
        async with aclosing(merge([source.items() for source in sources])) as merged:
            async for _ in merged:
                pass

    with pytest.raises(RuntimeError, match="broke"):
        asyncio.run(run())
    assert [source.open for source in sources] == [0] * count


@pytest.mark.parametrize("count", [1, 3])
def test_leaving_early_closes_all(count: int) -> None:
    sources = [Source(3, endless=True) for _ in range(count)]

    async def run() -> list[int]:
        async with aclosing(merge([source.items() for source in sources])) as merged:
            async for _ in merged:
                break
        return [source.open for source in sources]

    assert asyncio.run(run()) == [0] * count
