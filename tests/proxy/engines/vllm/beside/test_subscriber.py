"""The event stream over real sockets: events find their request, and what is missing is known."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
import zmq
import zmq.asyncio

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.beside.subscriber import EventStream, RequestEvent
from desist.proxy.engines.vllm.inside.publisher import Publisher
from desist.proxy.engines.vllm.wire import (
    WIRE_VERSION,
    Batch,
    Blocked,
    Closed,
    CommandDone,
    Event,
    Identity,
    Opened,
    Scored,
    Stopped,
    encode,
)
from tests.fakes.vllm_events import hello, life, scored

LOCAL = "tcp://127.0.0.1:0"
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


async def until(condition: Any) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never came")


@contextlib.asynccontextmanager
async def listening(*endpoints: str) -> AsyncIterator[EventStream]:
    stream = EventStream(endpoints)
    await stream.start()
    try:
        yield stream
    finally:
        await stream.close()


@contextlib.asynccontextmanager
async def engine_and_stream() -> AsyncIterator[tuple[Publisher, EventStream]]:
    publisher = Publisher(LOCAL, hello=hello)
    try:
        async with listening(publisher.endpoint) as stream:
            await stream.hello(30)
            yield publisher, stream
    finally:
        publisher.close(0.1)


class Script:
    """A publisher that sends whatever it is told to, gaps and nonsense included."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str = LOCAL) -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    async def subscribed(self) -> None:
        while not (await self.socket.recv()).startswith(b"\x01"):
            pass

    async def send(self, seq: int, events: Sequence[Event], dropped: int = 0) -> None:
        await self.raw([b"desist", seq.to_bytes(8, "big"), encode(Batch(seq, 0.0, 0, dropped, [*events]))])

    async def raw(self, frames: list[bytes]) -> None:
        await self.socket.send_multipart(frames)


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Script, EventStream]]:
    context = zmq.asyncio.Context()
    try:
        script = Script(context)
        async with listening(script.endpoint) as stream:
            await script.subscribed()
            yield script, stream
    finally:
        context.destroy(linger=0)


ONE = Identity("one")


def test_a_request_is_put_together() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            joined = stream.expect("one")
            assert (joined.identities, joined.opened(ONE), joined.scored(ONE)) == ((), None, ())
            events = life(ONE, 5)
            for event in events:
                publisher.publish([event])
            closed = await joined.closed(ONE, 30)
            assert closed == events[-1]
            assert await joined.closed(ONE, 0) == closed
            assert joined.identities == (ONE,)
            assert joined.opened(ONE) == events[0]
            assert joined.scored(ONE) == tuple(event for event in events if isinstance(event, Scored))
            assert joined.stopped(ONE) == events[5]
            assert joined.blocked(ONE) == (events[4],)
            assert joined.complete(ONE)
            assert joined.lost(ONE) == 0
            assert stream.totals() == {
                "taken": 7, "lost": 0, "missed": 0, "dropped": 0, "unknown": 0, "repeated": 0,
                "malformed": 0, "restarts": 0,
            }  # fmt: skip

    run(work())


def test_prompts_and_choices_of_one_key_are_told_apart() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            identities = [Identity("one", prompt, choice) for prompt in (0, 1) for choice in (0, 1, 2)]
            joined = stream.expect("one")
            lives = {identity: life(identity, 2 + place) for place, identity in enumerate(identities)}
            for step in range(9):
                publisher.publish([each[step] for each in reversed(lives.values()) if step < len(each)])
            for identity in identities:
                assert await joined.closed(identity, 30) == lives[identity][-1]
                assert joined.complete(identity)
            assert joined.identities == tuple(identities)

    run(work())


def test_a_thousand_requests_leave_nothing_behind() -> None:
    async def one(publisher: Publisher, stream: EventStream, number: int, gate: asyncio.Semaphore) -> None:
        rng = random.Random(number)
        async with gate:
            identity = Identity(f"k{number}")
            with stream.expect(identity.key) as joined:
                for event in life(identity, rng.randint(0, 8)):
                    publisher.publish([event])
                    if number % 3 == 0 and rng.random() < 0.2:
                        return  # the client has left; later events are nobody's
                assert await joined.closed(identity, 30) is not None
                assert joined.complete(identity)

    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            gate = asyncio.Semaphore(32)
            await asyncio.gather(*(one(publisher, stream, number, gate) for number in range(1000)))
            assert stream.expected == 0
            assert (stream.lost, stream.missed, stream.dropped, stream.repeated) == (0, 0, 0, 0)
            left = {name for name, value in vars(stream).items() if isinstance(value, dict) and value}
            assert left == set()

    run(work())


def test_released_and_unknown_keys_are_counted_and_dropped() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            joined = stream.expect("one")
            joined.release()
            joined.release()
            stream.release("never")
            publisher.publish([*life(ONE, 2), *life(Identity("stranger"), 0)])
            await until(lambda: stream.unknown == 6)
            assert (joined.identities, stream.taken, stream.expected) == ((), 0, 0)
            assert stream.expect("one") is not joined  # the key is free again

    run(work())


def test_release_lets_go_who_waits() -> None:
    async def work() -> None:
        async with engine_and_stream() as (_, stream):
            joined = stream.expect("one")
            waiting = asyncio.create_task(joined.closed(ONE, 60))
            await asyncio.sleep(0)
            stream.release("one")
            assert await waiting is None
            assert await joined.closed(Identity("one", 1), 60) is None

    run(work())


def test_close_lets_go_who_waits() -> None:
    async def work() -> None:
        async with engine_and_stream() as (_, stream):
            waiting = asyncio.create_task(stream.expect("one").closed(ONE, 60))
            answer = stream.answer_to("c")
            await asyncio.sleep(0)
            await stream.close()
            await stream.close()
            assert await waiting is None
            with pytest.raises(EngineError, match="closed before"):
                await answer
            assert stream.expected == 0

    run(work())


def test_a_key_in_use_is_refused() -> None:
    stream = EventStream([])
    stream.expect("one")
    with pytest.raises(EngineError, match="'one' is in use"):
        stream.expect("one")


def test_waiting_ends_in_time() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            joined = stream.expect("one")
            publisher.publish(life(ONE, 3)[:-1])
            await until(lambda: joined.stopped(ONE))
            assert await joined.closed(ONE, 0.05) is None
            assert await joined.closed(Identity("one", 9), 0.05) is None
            assert not joined.complete(ONE)
            assert joined.identities == (ONE,)  # waiting for one makes no identity

    run(work())


def test_hidden_states_go_to_the_listener_and_are_kept_on_demand() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            heard: list[RequestEvent] = []
            plain = stream.expect("one", listen=heard.append)
            keeping = stream.expect("two", keep_hidden=True)
            two = Identity("two")
            events = life(ONE, 4, b"1234")
            publisher.publish(events)
            publisher.publish(life(two, 4, b"5678"))
            assert await plain.closed(ONE, 30)
            assert await keeping.closed(two, 30)
            assert heard == events
            assert [event.hidden for event in heard if isinstance(event, Scored)] == [b"1234"] * 2
            assert [event.hidden for event in plain.scored(ONE)] == [None, None]
            assert [event.dtype for event in plain.scored(ONE)] == ["float32"] * 2
            assert [event.hidden for event in keeping.scored(two)] == [b"5678"] * 2

    run(work())


def test_a_listener_that_fails_loses_no_event() -> None:
    def fail(event: RequestEvent) -> None:
        raise RuntimeError("no")

    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            joined = stream.expect("one", listen=fail)
            publisher.publish(life(ONE, 3))
            assert await joined.closed(ONE, 30)
            assert joined.complete(ONE)

    run(work())


def test_gaps_are_counted_by_batch_and_by_event() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            joined = stream.expect("one")
            events = life(ONE, 6)
            await script.send(40, [hello()])  # joined late: no gap
            await script.send(41, events[:2])
            await script.send(44, events[4:5])  # two batches and the numbers 1 and 2 are lost
            await script.send(45, events[6:])  # number 4 was lost inside the engine
            assert await joined.closed(ONE, 30) == events[-1]
            assert (stream.missed, stream.lost, joined.lost(ONE), stream.restarts) == (2, 3, 3, 0)
            assert not joined.complete(ONE)
            assert [event.n for event in joined.scored(ONE)] == [0, 3]

    run(work())


def test_events_lost_at_the_end_are_seen_in_the_last_one() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            joined = stream.expect("one")
            events = life(ONE, 6)
            await script.send(0, [*events[:3], events[-1]])
            assert await joined.closed(ONE, 30) == events[-1]
            assert (stream.missed, joined.lost(ONE)) == (0, 4)

    run(work())


def test_a_lost_opening_is_noticed() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            joined = stream.expect("one")
            await script.send(0, life(ONE, 3)[1:])
            assert await joined.closed(ONE, 30) is not None
            assert (joined.lost(ONE), joined.opened(ONE), joined.complete(ONE)) == (1, None, False)

    run(work())


def test_what_comes_twice_is_taken_once() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            heard: list[RequestEvent] = []
            joined = stream.expect("one", listen=heard.append)
            events = life(ONE, 4)
            await script.send(0, events[:3])
            await script.send(1, events[:3])
            await script.send(2, events[3:])
            await script.send(3, events)
            await until(lambda: stream.repeated == 9)
            assert heard == events
            assert joined.complete(ONE)
            assert stream.taken == len(events)

    run(work())


@pytest.mark.parametrize("seed", range(5))
def test_random_losses_are_counted_exactly(seed: int) -> None:
    """Forty interleaved requests, a tenth of the batches lost: what each misses is known at its end."""

    async def work() -> None:
        rng = random.Random(seed)
        identities = [Identity(f"k{number}") for number in range(40)]
        lives = {identity: life(identity, rng.randint(0, 9)) for identity in identities}
        async with scripted() as (script, stream):
            joins = {identity: stream.expect(identity.key) for identity in lives}
            rest = {identity: list(events) for identity, events in lives.items()}
            lost = dict.fromkeys(lives, 0)
            gone, ended, seq = 0, set(), 0
            await script.send(seq, [])
            while rest:
                step = rng.sample(sorted(rest, key=lambda each: each.key), min(4, len(rest)))
                batch = [rest[identity].pop(0) for identity in step]
                rest = {identity: events for identity, events in rest.items() if events}
                seq += 1
                if rng.random() < 0.1:
                    gone += 1
                    for event in batch:
                        lost[event.identity] += 1  # type: ignore[union-attr]
                    continue
                ended |= {event.identity for event in batch if isinstance(event, Closed)}
                await script.send(seq, batch)
            await script.send(seq + 1, [])
            await until(lambda: stream.missed == gone)
            for identity in ended:
                assert await joins[identity].closed(identity, 30) == lives[identity][-1]
                assert joins[identity].lost(identity) == lost[identity]
                assert joins[identity].complete(identity) == (lost[identity] == 0)
            for identity in lives.keys() - ended:
                assert await joins[identity].closed(identity, 0) is None
            assert stream.restarts == 0

    run(work())


def test_a_restart_is_noticed_and_ends_what_was_open() -> None:
    async def work() -> None:
        first = Publisher(LOCAL, hello=lambda: hello(version="1"))
        async with listening(first.endpoint) as stream:
            assert [each.version for each in await stream.hello(30)] == ["1"]
            running, fresh = stream.expect("one"), stream.expect("later")
            first.publish(life(ONE, 3)[:3])
            await until(lambda: running.opened(ONE))
            waiting = asyncio.create_task(running.closed(ONE, 60))
            first.close(5.0)
            second = Publisher(first.endpoint, hello=lambda: hello(version="2"))
            try:
                assert await waiting is None
                assert [each.version for each in await stream.hello(30)] == ["2"]
                assert (stream.restarts, stream.missed) == (1, 0)
                later = Identity("later")
                second.publish(life(later, 2))
                assert await fresh.closed(later, 30)
                assert fresh.complete(later)
                second.publish(life(ONE, 4))  # the same request sent again, to the new engine
                await until(lambda: running.complete(ONE))
                assert len(running.scored(ONE)) == 2
            finally:
                second.close(0.1)

    run(work())


def test_a_restart_of_one_rank_leaves_the_others_alone() -> None:
    async def work() -> None:
        context = zmq.asyncio.Context()
        scripts = [Script(context), Script(context)]
        try:
            async with listening(*(script.endpoint for script in scripts)) as stream:
                identities = [Identity("k0"), Identity("k1")]
                joins = [stream.expect(identity.key) for identity in identities]
                for script, identity in zip(scripts, identities, strict=True):
                    await script.subscribed()
                    await script.send(0, life(identity, 3)[:2])
                await until(lambda: all(each.identities for each in joins))
                await scripts[0].send(0, [hello()])
                assert await joins[0].closed(identities[0], 30) is None
                await scripts[1].send(1, life(identities[1], 3)[2:])
                assert await joins[1].closed(identities[1], 30) is not None
                assert joins[1].complete(identities[1])
                assert stream.restarts == 1
        finally:
            context.destroy(linger=0)

    run(work())


def test_dropped_events_are_those_that_the_engine_reports() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            await script.send(0, [hello()], dropped=3)
            await script.send(1, [hello()], dropped=3)
            await script.send(2, [hello()], dropped=8)
            assert await stream.hello(30) == (hello(),)
            await script.send(0, [], dropped=1)  # another life
            await until(lambda: stream.restarts == 1)
            assert stream.dropped == 9
            assert stream.hellos == (None,)  # what runs there now is not known yet

    run(work())


def test_messages_that_cannot_be_read_end_nothing() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            joined = stream.expect("one")
            await script.send(0, life(ONE, 3)[:2])
            for frames in (
                [b"desist"],
                [b"desist", b"x", b"y"],
                [b"desist", (1).to_bytes(8, "big"), b"\xc1"],
                [b"desist", (2).to_bytes(8, "big"), b"\x91" * 5000],
                [b"desist", b"", b"", b""],
            ):
                await script.raw(frames)
            await script.send(3, life(ONE, 3)[2:])
            assert await joined.closed(ONE, 30)
            assert joined.complete(ONE)
            assert (stream.malformed, stream.missed) == (5, 0)  # unread batches came, so none is missed

    run(work())


def test_many_events_leave_room_for_other_tasks() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            joined = stream.expect("one")
            publisher.publish([Opened(ONE, 1, "active")])
            await until(lambda: joined.opened(ONE))
            for n in range(5000):
                publisher.publish([scored(ONE, n)])
            publisher.publish([Closed(ONE, 5000, 1, 1, 0, "natural")])
            turns = 0
            while not joined.complete(ONE):
                turns += 1
                await asyncio.sleep(0)
            assert turns > 5000 // 64
            assert stream.taken == 5002

    run(work())


def test_every_rank_is_heard_and_greeted() -> None:
    async def work() -> None:
        ranks = [Publisher(LOCAL, rank=rank, hello=lambda rank=rank: hello(rank)) for rank in range(3)]
        try:
            async with listening(*(each.endpoint for each in ranks)) as stream:
                assert [each.rank for each in await stream.hello(30)] == [0, 1, 2]
                joins = [stream.expect(f"k{rank}") for rank in range(3)]
                for rank, publisher in enumerate(ranks):
                    publisher.publish(life(Identity(f"k{rank}"), 3 + rank))
                for rank, joined in enumerate(joins):
                    assert await joined.closed(Identity(f"k{rank}"), 30)
                    assert joined.complete(Identity(f"k{rank}"))
                assert (stream.missed, stream.restarts) == (0, 0)
        finally:
            for publisher in ranks:
                publisher.close(0.1)

    run(work())


def test_silent_engines_are_named() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, _):
            silent = "tcp://127.0.0.1:1"
            async with listening(publisher.endpoint, silent) as stream:
                await until(lambda: stream.hellos[0])
                with pytest.raises(EngineError, match="no greeting") as caught:
                    await stream.hello(0.05)
                assert silent in str(caught.value)
                assert publisher.endpoint not in str(caught.value)
                assert stream.hellos == (hello(), None)

    run(work())


def test_a_greeting_can_be_awaited_by_many() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            waiting = [asyncio.create_task(stream.hello(30)) for _ in range(5)]
            await asyncio.sleep(0)
            await script.send(0, [hello()])
            assert await asyncio.gather(*waiting) == [(hello(),)] * 5

    run(work())


def test_another_release_is_refused_with_its_version() -> None:
    async def work() -> None:
        async with scripted() as (script, stream):
            await script.send(0, [hello(version="9.9", wire=WIRE_VERSION + 1)])
            with pytest.raises(EngineError, match=rf"desist 9\.9 with wire version {WIRE_VERSION + 1}"):
                await stream.hello(30)

    run(work())


@pytest.mark.parametrize("wrong", ["nonsense", "tcp://127.0.0.1", "tcp://*:8111"])
def test_an_address_that_cannot_be_used_is_named(wrong: str) -> None:
    async def work() -> None:
        stream = EventStream([wrong])
        with pytest.raises(EngineError, match="cannot be used"):
            await stream.start()
        await stream.close()

    run(work())


def test_answers_that_nobody_awaits_are_passed_over() -> None:
    async def work() -> None:
        async with engine_and_stream() as (publisher, stream):
            answer = stream.answer_to("mine")
            publisher.publish([CommandDone("theirs", True, ""), CommandDone("mine", False, "no")])
            publisher.publish([CommandDone("mine", True, "again")])
            assert await answer == CommandDone("mine", False, "no")
            assert (stream.unknown, stream.malformed) == (0, 0)

    run(work())


def test_kinds_of_events_are_all_there() -> None:
    """The fake life has every kind of event, so that the tests above see them all."""
    assert {type(event) for event in life(ONE, 3)} == {Opened, Scored, Blocked, Stopped, Closed}
