"""A scripted engine: says what it is told to say, and remembers what was asked and what was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from desist.controller.core import StopReason
from desist.proxy.engines.base import Delta, Event, Finished, GenerationRequest, ModelCard, Need, Usage


def plain_script() -> list[Event | Exception]:
    """Two pieces of reasoning, two of content, and a natural end."""
    return [
        Delta("reasoning", "2 and 2"),
        Delta("reasoning", " make 4."),
        Delta("content", "The answer"),
        Delta("content", " is 4."),
        Finished("stop", StopReason.NATURAL, Usage(7, 5, 4)),
    ]


@dataclass
class FakeEngine:
    """Plays `script` for every choice, or `scripts[index of the choice]`; an exception in it is raised."""

    script: Sequence[Event | Exception] = field(default_factory=plain_script)
    scripts: Mapping[int, Sequence[Event | Exception]] = field(default_factory=dict)
    pause_s: float = 0.0
    first_pause_s: float = 0.0
    offers: frozenset[Need] = frozenset({"text", "hidden"})
    passes_through: bool = False
    unready: str | None = None
    start_error: Exception | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    stopped_early: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    life: list[str] = field(default_factory=list)

    async def start(self) -> None:
        self.life.append("start")
        if self.start_error is not None:
            raise self.start_error

    async def close(self) -> None:
        self.life.append("close")

    async def ready(self) -> str | None:
        return self.unready

    async def models(self) -> tuple[ModelCard, ...]:
        return (ModelCard("fake", 4096), ModelCard("org/other"))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        index = int(request.request_id.rpartition("/")[2])
        ended = False
        try:
            await asyncio.sleep(self.first_pause_s)
            for event in self.scripts.get(index, self.script):
                await asyncio.sleep(self.pause_s)
                if isinstance(event, Exception):
                    ended = True
                    raise event
                yield event
            ended = True
            self.completed.append(request.request_id)
        finally:
            if not ended:
                self.stopped_early.append(request.request_id)
