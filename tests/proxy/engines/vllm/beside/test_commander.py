"""Commands from the proxy to an inbox and the answers back, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.beside.commander import Commander
from desist.proxy.engines.vllm.beside.subscriber import EventStream
from desist.proxy.engines.vllm.inside.commands import CommandInbox
from desist.proxy.engines.vllm.inside.publisher import Publisher
from desist.proxy.engines.vllm.wire import Command, CommandDone, Identity, Reload, SetMode, StopNow
from tests.fakes.vllm_events import hello

LOCAL = "tcp://127.0.0.1:0"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


class Engine:
    """Publisher and inbox as in an engine; `obey` is its step, once a millisecond."""

    def __init__(self) -> None:
        self.publisher = Publisher(LOCAL, hello=hello)
        self.taken: list[tuple[Command, object | None]] = []
        self.inbox = CommandInbox(
            LOCAL, prepare=lambda command: command.probe, answer=lambda done: self.publisher.publish([done])
        )

    async def obey(self, decide: Callable[[Command], CommandDone]) -> None:
        while True:
            for command, prepared in self.inbox.take():
                self.taken.append((command, prepared))
                self.publisher.publish([decide(command)])
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self.inbox.close(0.1)
        self.publisher.close(0.1)


def agree(command: Command) -> CommandDone:
    return CommandDone(command.id, True, type(command).__name__)


@contextlib.asynccontextmanager
async def connected(
    decide: Callable[[Command], CommandDone] | None = agree,
) -> AsyncIterator[tuple[Engine, Commander, EventStream]]:
    engine = Engine()
    stream = EventStream([engine.publisher.endpoint])
    await stream.start()
    commander = Commander(engine.inbox.endpoint, stream, timeout_s=30)
    steps = asyncio.create_task(engine.obey(decide)) if decide else None
    try:
        await stream.hello(30)
        yield engine, commander, stream
    finally:
        if steps is not None:
            steps.cancel()
        commander.close()
        await stream.close()
        engine.close()


def test_each_command_arrives_and_is_answered() -> None:
    async def work() -> None:
        async with connected() as (engine, commander, _):
            choice = Identity("k", 1, 2)
            answers = [
                await commander.stop_now("k"),
                await commander.stop_now(
                    "k", identity=choice, reason="probe", index=3, score=0.5, certified=True
                ),
                await commander.set_mode("shadow"),
                await commander.reload(probe="p", certificates=["c"], force=True),
            ]
            assert [done.message for done in answers] == ["StopNow", "StopNow", "SetMode", "Reload"]
            assert all(done.ok for done in answers)
            ids = [command.id for command, _ in engine.taken]
            assert [done.command for done in answers] == ids
            assert len(set(ids)) == 4
            assert engine.taken == [
                (StopNow(ids[0], "k"), None),
                (StopNow(ids[1], "k", choice, "probe", 3, 0.5, True), None),
                (SetMode(ids[2], "shadow"), None),
                (Reload(ids[3], "p", None, ("c",), True), "p"),
            ]

    run(work())


def test_a_no_is_an_answer() -> None:
    async def work() -> None:
        async with connected(lambda command: CommandDone(command.id, False, "not here")) as (
            _,
            commander,
            _s,
        ):
            done = await commander.stop_now("k")
            assert (done.ok, done.message) == (False, "not here")

    run(work())


def test_a_ping_needs_no_step() -> None:
    async def work() -> None:
        async with connected(None) as (_, commander, _s):
            assert (await commander.ping()).ok

    run(work())


def test_a_command_without_answer_times_out_and_leaves_nothing() -> None:
    async def work() -> None:
        async with connected(None) as (engine, commander, stream):
            await commander.ping()
            with pytest.raises(EngineError, match=r"did not answer the command SetMode within 0\.05 s"):
                await commander.set_mode("off", timeout_s=0.05)
            assert (await commander.ping()).ok
            ((command, _),) = engine.inbox.take()
            engine.publisher.publish([agree(command)])  # too late, and nobody's
            assert (await commander.ping()).ok
            assert not stream._answers

    run(work())


def test_many_commands_at_once_get_their_own_answers() -> None:
    async def work() -> None:
        async with connected(lambda command: CommandDone(command.id, True, getattr(command, "key", ""))) as (
            _,
            commander,
            _stream,
        ):
            answers = await asyncio.gather(*(commander.stop_now(f"k{number}") for number in range(200)))
            assert [done.message for done in answers] == [f"k{number}" for number in range(200)]

    run(work())


def test_send_does_not_wait() -> None:
    async def work() -> None:
        async with connected() as (engine, commander, _):
            await commander.ping()
            commands = [StopNow(str(number), "k") for number in range(50)]
            assert all(commander.send(command) for command in commands)
            assert (await commander.set_mode("off")).ok  # behind them all
            assert [command for command, _ in engine.taken[:-1]] == commands
            assert commander.unsent == 0

    run(work())


def test_nobody_there_is_said_and_nothing_is_kept_for_later() -> None:
    async def work() -> None:
        async with connected(None) as (engine, _, stream):
            free = CommandInbox(LOCAL, prepare=lambda command: None, answer=lambda done: None)
            free.close()
            commander = Commander(free.endpoint, stream)
            try:
                assert not commander.send(StopNow("1", "k"))
                assert commander.unsent == 1
                with pytest.raises(EngineError, match="nobody takes commands at") as caught:
                    await commander.set_mode("off", timeout_s=0.1)
                assert free.endpoint in str(caught.value)
                late = CommandInbox(
                    free.endpoint,
                    prepare=lambda command: None,
                    answer=lambda done: engine.publisher.publish([done]),
                )
                try:
                    assert (await commander.ping(timeout_s=30)).ok  # it finds the engine when it comes
                    assert late.take() == []
                finally:
                    late.close()
            finally:
                commander.close()
                commander.close()

    run(work())


def test_a_stream_that_closes_lets_go_who_waits() -> None:
    async def work() -> None:
        async with connected(None) as (_, commander, stream):
            waiting = asyncio.create_task(commander.set_mode("off"))
            await commander.ping()
            await stream.close()
            with pytest.raises(EngineError, match="closed before the engine answered"):
                await waiting

    run(work())


@pytest.mark.parametrize("wrong", ["nonsense", "tcp://127.0.0.1"])
def test_an_address_that_cannot_be_used_is_named(wrong: str) -> None:
    with pytest.raises(EngineError, match="commands address") as caught:
        Commander(wrong, EventStream([]))
    assert repr(wrong) in str(caught.value)
