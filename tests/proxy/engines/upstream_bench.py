"""The upstream engine alone before a fake upstream: one request, all that came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from desist.controller.core import Control, Mode, Policy
from desist.data.schema import Sampling
from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.engines.base import Delta, Event, Finished, GenerationRequest
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.engine import UpstreamEngine
from desist.proxy.settings import UpstreamSettings
from tests.fakes.upstream import FakeUpstream, served

MESSAGES = ({"role": "user", "content": "2+2?"},)
SENTENCE = " I have enough to answer now."


@dataclass
class Told:
    """What the engine said of one request."""

    events: list[Event] = field(default_factory=list)
    error: Exception | None = None

    @property
    def deltas(self) -> list[Delta]:
        return [each for each in self.events if isinstance(each, Delta)]

    def text(self, channel: str) -> str:
        return "".join(each.text for each in self.deltas if each.channel == channel)

    @property
    def reasoning(self) -> str:
        return self.text("reasoning")

    @property
    def content(self) -> str:
        return self.text("content")

    @property
    def end(self) -> Finished:
        assert self.error is None, self.error
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def buffer(self) -> ChoiceBuffer:
        made = ChoiceBuffer()
        for each in self.events:
            made.add(each)
        return made


def request(
    *, mode: Mode = "active", budget: int | None = None, number: int = 0, answer: str = "write", **body: Any
) -> GenerationRequest:
    """A chat (or, with `prompt`, a text completion) as the proxy hands it on."""
    chat = "prompt" not in body
    whole: dict[str, Any] = ({"messages": list(MESSAGES)} if chat else {}) | body
    prompt = whole.get("prompt")
    return GenerationRequest(
        request_id=f"r1/{number}",
        model="up",
        sampling=Sampling(
            seed=body.get("seed"), max_tokens=body.get("max_completion_tokens") or body.get("max_tokens")
        ),
        control=Control(mode, Policy(), budget, answer),  # type: ignore[arg-type]
        messages=tuple(whole["messages"]) if chat else None,
        prompt=tuple(prompt) if isinstance(prompt, list) else prompt,
        stop=tuple([body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop", ())),
        template=body.get("chat_template_kwargs", {}),
        body=whole,
        headers={"x-request-id": "r1"},
    )


class Bench:
    """A fake upstream, and engines before it."""

    def __init__(self, fake: FakeUpstream, url: str) -> None:
        self.fake, self.url = fake, url

    def ask(
        self,
        *requests: GenerationRequest,
        known: Capabilities | None = None,
        during: Callable[[UpstreamEngine], Any] | None = None,
        loops: bool = True,
        min_answer_tokens: int = 256,
        model: str = "up",
        **settings: Any,
    ) -> list[Told]:
        """Run requests at once. `known`: what the engine knows of the server; `during`: awaited meanwhile."""
        made = UpstreamSettings(url=self.url, **({"self_test": False} | settings))

        async def one(engine: UpstreamEngine, asked: GenerationRequest) -> Told:
            told = Told()
            try:
                async for event in engine.generate(asked):
                    told.events.append(event)
            except Exception as error:
                told.error = error
            return told

        async def all_of_them() -> list[Told]:
            engine = UpstreamEngine(made, loops=loops, min_answer_tokens=min_answer_tokens)
            if known is not None:
                engine._knowledge._known[model] = known
            await engine.start()
            try:
                tasks = [asyncio.create_task(one(engine, each)) for each in requests]
                if during is not None:
                    await during(engine)
                return list(await asyncio.gather(*tasks))
            finally:
                await engine.close()

        return asyncio.run(all_of_them())

    def one(self, asked: GenerationRequest, **settings: Any) -> Told:
        return self.ask(asked, **settings)[0]


@contextmanager
def bench() -> Iterator[Bench]:
    """A fresh pair."""
    fake = FakeUpstream()
    with served(fake) as url:
        yield Bench(fake, url)
