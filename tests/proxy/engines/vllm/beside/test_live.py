"""What an operator does to a running server: stop a request, pull the switch, load another probe; and what
is refused when the parts do not fit together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from desist.controller import Control, Policy, StopReason
from desist.data.errors import ArtifactMismatch, EngineError, NotOffered, ProbeError
from desist.data.schema import Sampling
from desist.probes.artifact import save_probe
from desist.proxy import Settings, create_app
from desist.proxy.engines.base import Delta, Finished, GenerationRequest
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.vllm.beside.engine import VllmEngine
from desist.proxy.live.reload import reload
from desist.proxy.settings import UpstreamSettings, VllmSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.server import live_server
from tests.fakes.vllm_server import PROFILE, FakeVllm, threshold_probe

LONG = "12 + " * 400


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("probes")
    other = threshold_probe(1000.0)
    wide = threshold_probe()
    wide.card = replace(wide.card, fingerprints={"model": "another"})
    return {
        "probe": save_probe(threshold_probe(), folder / "probe"),
        "other": save_probe(other, folder / "other"),
        "foreign": save_probe(wide, folder / "foreign"),
    }


def started(servers: ExitStack, **fake: Any) -> tuple[FakeVllm, Settings]:
    one = FakeVllm(**fake)
    url = servers.enter_context(live_server(one.app()))
    return one, Settings(
        engine="vllm",
        model=str(builtin_model()),
        upstream=UpstreamSettings(url=url),
        vllm=VllmSettings(
            profile=PROFILE.name, events=one.publisher.endpoint, commands=one.inbox.endpoint, hello_s=5
        ),
    )


def request(name: str = "r/0", control: Control | None = None) -> GenerationRequest:
    control = control or Control("active", Policy(lam=2.0))  # a threshold that no score reaches
    messages = ({"role": "user", "content": "5 + 7?"},)
    return GenerationRequest(name, "m", Sampling(max_tokens=900), control, messages=messages)


async def ended(engine: VllmEngine, asked: GenerationRequest) -> Finished:
    events = [event async for event in engine.generate(asked)]
    assert isinstance(events[-1], Finished)
    return events[-1]


def with_engine(settings: Settings, what: Callable[[VllmEngine], Awaitable[None]]) -> None:
    async def body() -> None:
        engine = VllmEngine(settings)
        try:
            await engine.start()
            await what(engine)
        finally:
            await engine.close()

    asyncio.run(body())


def test_stop_now_ends_thinking_of_the_choices_named(servers: ExitStack) -> None:
    _, settings = started(servers, script=LONG, pause_s=0.002)

    async def what(engine: VllmEngine) -> None:
        running = [asyncio.create_task(ended(engine, request(f"r/{n}"))) for n in range(3)]
        await asyncio.sleep(0.1)
        assert await engine.stop_now("r/1") == 1
        assert (await running[1]).stop_reason is StopReason.MANUAL
        assert await engine.stop_now("r") == 2
        for task in running:
            finished = await task
            assert finished.decision is not None
            assert (finished.stop_reason, finished.decision.certified) == (StopReason.MANUAL, False)
        with pytest.raises(EngineError, match="no request 'r' is followed"):
            await engine.stop_now("r")

    with_engine(settings, what)


def test_an_untouched_request_cannot_be_stopped(servers: ExitStack) -> None:
    _, settings = started(servers, script=LONG, pause_s=0.002)

    async def what(engine: VllmEngine) -> None:
        events = engine.generate(request(control=Control("off")))
        assert isinstance(await anext(events), Delta)
        with pytest.raises(EngineError, match="mode 'off'"):
            await engine.stop_now("r/0")
        await events.aclose()

    with_engine(settings, what)


def test_the_kill_switch_holds_requests_in_shadow(servers: ExitStack) -> None:
    fake, settings = started(servers)

    async def what(engine: VllmEngine) -> None:
        active = request(control=Control("active", Policy(lam=0.5)))
        assert (await ended(engine, active)).stop_reason is StopReason.PROBE
        await engine.set_cap("shadow")
        assert fake.runtime.cap == "shadow"
        held = await ended(engine, active)
        assert (held.stop_reason, held.uncontrolled) == (
            StopReason.NATURAL,
            "the kill switch allows mode 'shadow' at most",
        )
        assert held.shadow is not None
        await engine.set_cap("off")
        off = await ended(engine, active)
        assert (off.shadow, off.uncontrolled) == (None, "the kill switch allows mode 'off' at most")
        assert "vllm_xargs" not in fake.bodies[-1]
        await engine.set_cap("active")
        assert (await ended(engine, active)).stop_reason is StopReason.PROBE

    with_engine(settings, what)


def test_the_switch_works_where_the_proxy_decides(servers: ExitStack, probes: dict[str, Path]) -> None:
    _, settings = started(servers, decide="proxy", stream="float32", pause_s=0.005)
    settings = settings.model_copy(update={"probe": probes["probe"]})

    async def what(engine: VllmEngine) -> None:
        active = request(control=Control("active", Policy(lam=0.5)))
        await engine.set_cap("shadow")
        held = await ended(engine, active)
        assert held.stop_reason is StopReason.NATURAL
        assert held.shadow is not None
        before = engine.fingerprints["probe"]
        await engine.set_cap("active")
        await engine.reload(probe=probes["other"])
        assert engine.fingerprints["probe"] != before
        assert (await ended(engine, active)).stop_reason is StopReason.NATURAL  # no score reaches 0.5
        with pytest.raises(ArtifactMismatch):
            await engine.reload(probe=probes["foreign"])

    with_engine(settings, what)


def test_a_reload_is_the_engine_s_matter_where_it_decides(servers: ExitStack) -> None:
    _, settings = started(servers)

    async def what(engine: VllmEngine) -> None:
        await engine.reload(probe="good", certificates=["c.json"])
        await engine.reload()
        with pytest.raises(EngineError, match="nothing was reloaded: no such probe"):
            await engine.reload(probe="bad")

    with_engine(settings, what)


def test_a_server_that_runs_something_else_now_is_not_used(servers: ExitStack) -> None:
    fake, settings = started(servers)

    async def what(engine: VllmEngine) -> None:
        await ended(engine, request())
        changed = fake.hello().fingerprints | {"probe": "another"}
        fake.publisher.publish([msgspec.structs.replace(fake.hello(), fingerprints=changed)])
        for _ in range(300):
            if await engine.ready() is not None:
                break
            await asyncio.sleep(0.01)
        assert "another probe runs in vLLM" in (await engine.ready() or "")
        with pytest.raises(EngineError, match="another probe runs in vLLM"):
            await ended(engine, request())

    with_engine(settings, what)


def test_commands_are_refused_under_tensor_parallelism(servers: ExitStack) -> None:
    _, settings = started(servers, outside=False)

    async def what(engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match="not limited to off: refused: tensor parallelism"):
            await engine.set_cap("off")

    with_engine(settings, what)


async def nothing(engine: VllmEngine) -> None:
    raise AssertionError("the engine must not start")


@pytest.mark.parametrize(
    ("fake", "vllm", "words"),
    [
        ({}, {"decide": "proxy"}, "runs with decide 'engine'"),
        ({}, {"profile": "qwen3"}, "another model profile than 'qwen3'"),
        ({"decide": "proxy", "stream": "float32", "outside": False}, {}, "tensor parallelism"),
        ({"decide": "proxy"}, {}, "streams none"),
        ({}, {"hello_s": 0.3, "events": "tcp://127.0.0.1:9"}, "no greeting.*docs/vllm.md"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(
    servers: ExitStack, fake: dict[str, Any], vllm: dict[str, Any], words: str
) -> None:
    _, settings = started(servers, **fake)
    changed = settings.model_copy(update={"vllm": settings.vllm.model_copy(update=vllm)})
    with pytest.raises(EngineError, match=words):
        with_engine(changed, nothing)


def test_another_model_s_folder_is_refused(servers: ExitStack) -> None:
    from tests.fakes.tiny_model import tiny_folder

    _, settings = started(servers)
    with pytest.raises(EngineError, match="is not the one that vLLM runs"):
        with_engine(settings.model_copy(update={"model": str(tiny_folder())}), nothing)


def test_a_probe_of_another_model_is_refused(servers: ExitStack, probes: dict[str, Path]) -> None:
    _, settings = started(servers, decide="proxy", stream="float32")
    with pytest.raises(ArtifactMismatch, match="another"):
        with_engine(settings.model_copy(update={"probe": probes["foreign"]}), nothing)


def test_an_absent_server_is_told(servers: ExitStack) -> None:
    _, settings = started(servers)
    gone = settings.model_copy(update={"upstream": UpstreamSettings(url="http://127.0.0.1:9")})
    with pytest.raises(EngineError, match="cannot be reached"):
        with_engine(gone, nothing)


def test_reloading_an_app_changes_its_operating_points(
    servers: ExitStack, probes: dict[str, Path], tmp_path: Path
) -> None:
    """The certificates of the old probe are out of use as soon as another probe runs."""
    _, settings = started(servers, decide="proxy", stream="float32")
    app = create_app(settings.model_copy(update={"probe": probes["probe"]}))
    state = app.state.desist

    async def body() -> None:
        async with app.router.lifespan_context(app):
            state.settings = state.settings.model_copy(update={"certificates": (tmp_path / "none.json",)})
            before = state.resolver
            with pytest.raises(ProbeError):
                await reload(state, probe=tmp_path)
            assert state.resolver is before
            with pytest.raises(Exception, match="no certificate"):
                await reload(state, probe=probes["other"])
            assert state.resolver.points == ()
            await reload(state, certificates=())
            assert state.settings.certificates == ()
            assert state.settings.probe == probes["other"]

    asyncio.run(body())
    other = create_app(Settings(), engine=FakeEngine(), certificates=[])
    with pytest.raises(NotOffered, match="Start it again"):
        asyncio.run(reload(other.state.desist))
