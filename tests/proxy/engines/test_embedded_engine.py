"""The engine as the proxy sees it: events, cancelling, errors, sixteen clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from desist.controller import Control, Policy, StopReason
from desist.data.errors import EngineError, ProbeError
from desist.data.schema import Sampling
from desist.kernels import Layer
from desist.probes import save_probe
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from desist.proxy.engines.base import Delta, Engine, Event, Finished, GenerationRequest
from desist.proxy.engines.embedded import EmbeddedEngine, default_sampling
from desist.proxy.errors import api_error
from tests.fakes.tiny_model import PROFILE, WIDTH, tiny_folder

T = TypeVar("T")
SAMPLING = Sampling(0.9, 0.98, 11, 60)


def request(text: str = "What is 1 + 4?", **fields: Any) -> GenerationRequest:
    base = GenerationRequest("r", "tiny", SAMPLING, Control("off"), ({"role": "user", "content": text},))
    return replace(base, **fields)


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tiny_folder(), profile=PROFILE, device="cpu", threads=1, **settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def complete(engine: EmbeddedEngine, asked: GenerationRequest) -> list[Event]:
    return [event async for event in engine.generate(asked)]


def with_engine(use: Callable[[EmbeddedEngine], Awaitable[T]], **settings: Any) -> T:
    async def main() -> T:
        async with started(**settings) as engine:
            return await asyncio.wait_for(use(engine), 120)

    return asyncio.run(main())


def test_it_is_an_engine() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        typed: Engine = engine
        assert await typed.ready() is None
        (card,) = await typed.models()
        assert (card.model_id, card.max_model_len) == (tiny_folder().name, 512)
        assert typed.offers == {"text", "logprobs"}
        assert {"model", "tokenizer", "template", "dtype", "profile"} <= set(engine.fingerprints)
        events = await complete(engine, request())
        assert all(isinstance(event, Delta) for event in events[:-1])
        end = events[-1]
        assert isinstance(end, Finished)
        assert end.usage.completion_tokens == sum(len(e.token_ids) for e in events if isinstance(e, Delta))

    with_engine(use)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sixteen_clients_get_what_each_gets_alone(temperature: float) -> None:
    asked = [
        request("x" * (2 * n), sampling=Sampling(temperature, 0.98, n, 24), request_id=str(n))
        for n in range(16)
    ]

    async def use(engine: EmbeddedEngine) -> None:
        together = await asyncio.gather(*(complete(engine, one) for one in asked))
        for one, events in zip(asked, together, strict=True):
            assert await complete(engine, one) == events

    with_engine(use)


def test_a_stop_by_budget_and_both_answer_modes() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        for answer in ("write", "extract"):
            control = Control("active", Policy(lam=None), budget=10, answer=answer)  # type: ignore[arg-type]
            events = await complete(engine, request(control=control))
            end = events[-1]
            assert isinstance(end, Finished)
            assert end.stop_reason is StopReason.BUDGET
            assert end.usage.handoff_tokens > 0
            content = "".join(e.text for e in events if isinstance(e, Delta) and e.channel == "content")
            assert content.startswith(PROFILE.answer_opening(answer))  # type: ignore[arg-type]

    with_engine(use)


def test_closing_a_stream_frees_its_slot() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        slow = request(sampling=Sampling(0.9, 1.0, 3, 400))
        async with aclosing(engine.generate(slow)) as stream:
            async for _ in stream:
                break
        waiting = asyncio.create_task(complete(engine, slow))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert isinstance((await complete(engine, request()))[-1], Finished)
        runner = engine._runner
        assert runner is not None
        assert (runner.n_running, runner.n_waiting) == (0, 0)

    with_engine(use, max_slots=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": ({"role": "user", "content": "x" * 600},)}, "leaves no room"),
        ({"messages": None, "prompt": ()}, "prompt is empty"),
        ({"messages": None, "prompt": (5, 10**6)}, "token id 1000000"),
        ({"sampling": Sampling(0.9, 1.0, 1, 5000)}, "context of 512"),
        ({"sampling": Sampling(-1.0, 1.0, 1, 5)}, "temperature is -1"),
    ],
)
def test_impossible_requests_are_told_why(fields: dict[str, Any], message: str) -> None:
    fields.setdefault("sampling", Sampling(0.9, 1.0, 1, None))

    async def use(engine: EmbeddedEngine) -> None:
        with pytest.raises(EngineError, match=message) as caught:
            await complete(engine, request(**fields))
        assert api_error(caught.value).status == 400
        assert isinstance((await complete(engine, request()))[-1], Finished)

    with_engine(use)


def test_closing_the_engine_ends_requests_in_flight() -> None:
    async def main() -> None:
        async with started() as engine:
            task = asyncio.create_task(complete(engine, request(sampling=Sampling(0.9, 1.0, 3, 400))))
            await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="closed"):
            await asyncio.wait_for(task, 60)
        assert await engine.ready() == "the model is not loaded yet"
        with pytest.raises(EngineError, match="not started"):
            await complete(engine, request())

    asyncio.run(main())


def test_a_policy_without_its_scorer_is_reported() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        events = await complete(engine, request(control=Control("active", Policy("probe", lam=0.5))))
        assert isinstance(events[-1], Finished)
        assert "'probe'" in (events[-1].uncontrolled or "")

    with_engine(use)


def test_token_ids_and_text_prompts() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
        by_text = await complete(engine, request(messages=None, prompt=text))
        ids = engine._loaded().text_ids(text)
        assert await complete(engine, request(messages=None, prompt=ids)) == by_text
        closed = request(template={"enable_thinking": False})
        events = await complete(engine, closed)
        assert all(event.channel == "content" for event in events if isinstance(event, Delta))

    with_engine(use)


def test_default_sampling_is_the_model_s_own(tmp_path: Path) -> None:
    assert default_sampling(tiny_folder()) == Sampling(0.8, 0.95, None, 96)
    assert default_sampling(tmp_path) == Sampling(1.0, 1.0, None, None)
    with pytest.raises(EngineError, match=r"no config\.json"):
        asyncio.run(EmbeddedEngine(tmp_path, profile=PROFILE).start())


def constant_probe(folder: Path, tap: int, bias: float) -> Path:
    """A saved probe that gives every boundary the score sigmoid(bias)."""
    card = ProbeCard("logistic", (tap,), WIDTH, "consistent")
    return save_probe(LynxProbe(card, [Layer(torch.zeros(1, WIDTH), torch.full((1,), bias))]), folder)


def test_another_probe_scores_the_requests_that_come_after(tmp_path: Path) -> None:
    low, high = constant_probe(tmp_path / "a", 2, -9.0), constant_probe(tmp_path / "b", 2, 9.0)
    control = Control("active", Policy(lam=0.5))

    async def use(engine: EmbeddedEngine) -> None:
        async def stops() -> int:
            asked = (request(control=control, sampling=Sampling(0.9, 0.98, n, 60)) for n in range(8))
            ends = [(await complete(engine, one))[-1] for one in asked]
            return sum(isinstance(end, Finished) and end.stop_reason is StopReason.PROBE for end in ends)

        first = engine.fingerprints["probe"]
        assert await stops() == 0
        await engine.reload(certificates=["c.json"])
        await engine.reload(probe=high)
        second = engine.fingerprints["probe"]
        assert second != first
        assert await stops() > 0
        with pytest.raises(ProbeError, match="taps 0"):
            await engine.reload(probe=constant_probe(tmp_path / "c", 0, 9.0))
        assert engine.fingerprints["probe"] == second
        await engine.reload(probe=low)
        assert engine.fingerprints["probe"] == first
        assert await stops() == 0

    with_engine(use, probe=low)
