"""The publisher over real sockets: nothing twice, nothing skipped, and nobody makes the engine wait."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.inside.publisher import Publisher
from desist.proxy.engines.vllm.wire import Event, Hello, Identity, Opened
from tests.fakes.server import wait_for
from tests.fakes.vllm_events import hello, reader

LOCAL = "tcp://127.0.0.1:0"


def opened(number: int, key: str = "k") -> Opened:
    return Opened(Identity(key, number), number, "active")


@contextlib.contextmanager
def publishing(
    endpoint: str = LOCAL, *, greet: Callable[[], Event] = hello, capacity: int = 100_000
) -> Iterator[Publisher]:
    publisher = Publisher(endpoint, rank=2, capacity=capacity, hello=greet)
    try:
        yield publisher
    finally:
        publisher.close(0.1)


def test_events_come_out_as_they_went_in() -> None:
    with publishing() as publisher, reader(publisher.endpoint) as sub:
        assert publisher.endpoint.startswith("tcp://127.0.0.1:")
        assert not publisher.endpoint.endswith(":0")
        greeting = sub.batch()
        assert greeting.events == [hello()]
        publisher.publish([opened(0), opened(1)])
        publisher.publish([])
        publisher.publish((opened(2),))
        first, second = sub.batch(), sub.batch()
        assert [first.events, second.events] == [[opened(0), opened(1)], [opened(2)]]
        assert [each.seq for each in (greeting, first, second)] == [0, 1, 2]
        assert {each.rank for each in (greeting, first, second)} == {2}
        assert first.ts <= second.ts


def test_ipc(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/e"
    with publishing(address) as publisher, reader(publisher.endpoint) as sub:
        assert publisher.endpoint == address
        assert sub.batch().events == [hello()]


def test_a_caller_may_use_its_list_again() -> None:
    held, asked = threading.Event(), threading.Event()

    def greet() -> Event:  # holds the thread, so that the list is changed before it is sent
        asked.set()
        held.wait()
        return hello()

    with publishing(greet=greet) as publisher, reader(publisher.endpoint) as sub:
        assert asked.wait(20)
        events: list[Event] = [opened(0)]
        publisher.publish(events)
        events.append(opened(1))
        held.set()
        assert [sub.batch().events, sub.batch().events] == [[hello()], [opened(0)]]


def test_each_late_subscriber_is_greeted() -> None:
    with publishing() as publisher:
        with reader(publisher.endpoint) as first:
            first.batch()
            for number in range(100):
                publisher.publish([opened(number)])
            first.until(100)
        with reader(publisher.endpoint) as early:
            greeting = early.batch()
            assert [type(event) for event in greeting.events] == [Hello]
            assert greeting.seq == 101
            with reader(publisher.endpoint) as late:
                assert late.batch().events == [hello()]
                publisher.publish([opened(7)])
                assert late.batch().events == [opened(7)]
            greeting, event = early.batch(), early.batch()  # the other's greeting is heard by all
            assert (greeting.events, event.events) == ([hello()], [opened(7)])
            assert event.seq == greeting.seq + 1


def test_a_greeting_that_fails_ends_nothing() -> None:
    broken = threading.Event()
    broken.set()

    def greet() -> Event:
        if broken.is_set():
            broken.clear()
            raise RuntimeError("not ready")
        return hello()

    with publishing(greet=greet) as publisher:
        with reader(publisher.endpoint):
            wait_for(lambda: not broken.is_set())
        with reader(publisher.endpoint) as sub:
            assert sub.batch().events == [hello()]


def test_twenty_thousand_events_exactly_once() -> None:
    rng = random.Random(3)
    sizes: list[int] = []
    while sum(sizes) < 20_000:
        sizes.append(min(rng.randint(1, 9), 20_000 - sum(sizes)))
    with publishing() as publisher, reader(publisher.endpoint) as sub:
        assert sub.batch().seq == 0
        number = 0
        for size in sizes:
            publisher.publish([opened(number + place) for place in range(size)])
            number += size
        batches = sub.until(20_000)
        assert [len(batch.events) for batch in batches] == sizes  # one batch for each step
        assert [batch.seq for batch in batches] == list(range(1, len(sizes) + 1))
        assert [event for batch in batches for event in batch.events] == [opened(n) for n in range(20_000)]
        assert publisher.dropped == batches[-1].dropped == 0


def test_many_threads_may_publish() -> None:
    with publishing() as publisher, reader(publisher.endpoint) as sub:
        sub.batch()

        def work(key: str) -> None:
            for number in range(500):
                publisher.publish([opened(number, key)])

        threads = [threading.Thread(target=work, args=(key,)) for key in "abcd"]
        for thread in threads:
            thread.start()
        batches = sub.until(2000)
        for thread in threads:
            thread.join()
        assert [batch.seq for batch in batches] == list(range(1, 2001))
        events = [event for batch in batches for event in batch.events]
        for key in "abcd":
            mine = [e for e in events if isinstance(e, Opened) and e.identity.key == key]
            assert mine == [opened(number, key) for number in range(500)]


def test_overflow_drops_the_newest_whole_and_counts() -> None:
    held, asked = threading.Event(), threading.Event()

    def greet() -> Event:  # holds the thread, so that the queue fills for certain
        asked.set()
        held.wait()
        return hello()

    with publishing(greet=greet, capacity=10) as publisher, reader(publisher.endpoint) as sub:
        assert asked.wait(20)
        for number in range(4):
            publisher.publish([opened(3 * number + place) for place in range(3)])
        assert publisher.dropped == 3  # three batches of three fit, the fourth would make twelve
        publisher.publish([opened(100)])
        publisher.publish([opened(101)])
        assert publisher.dropped == 4
        held.set()
        batches = sub.until(10)
        told = [
            event.prompt_tokens for batch in batches for event in batch.events if isinstance(event, Opened)
        ]
        assert told == [*range(9), 100]
        assert [batch.seq for batch in batches] == list(range(len(batches)))
        assert batches[-1].dropped == 4
        publisher.publish([opened(102)])  # there is room again
        assert sub.batch().events == [opened(102)]


def test_a_batch_larger_than_the_queue_is_dropped() -> None:
    with publishing(capacity=3) as publisher, reader(publisher.endpoint) as sub:
        sub.batch()
        publisher.publish([opened(number) for number in range(4)])
        publisher.publish([opened(9)])
        assert sub.batch().events == [opened(9)]
        assert publisher.dropped == 4


def test_slow_and_dead_subscribers_hold_up_nobody() -> None:
    """One subscriber never reads, one has left, one connects without speaking the protocol."""
    text = "x" * 2000
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(publishing())
        idle = stack.enter_context(reader(publisher.endpoint, high_water=1))
        seq = idle.batch().seq
        with reader(publisher.endpoint) as gone:
            gone.batch()
        address = urlsplit(publisher.endpoint)
        for _ in range(2):
            mute = stack.enter_context(socket.create_connection((str(address.hostname), address.port or 0)))
        mute.sendall(b"GET / HTTP/1.1\r\n\r\n")
        live = stack.enter_context(reader(publisher.endpoint))
        live.batch()
        for first in range(0, 30_000, 100):  # 60 MB: more than the kernel and the idle reader take
            for number in range(first, first + 100):
                publisher.publish([Opened(Identity("k", number), number, "active", text)])
            got = [batch.events[0] for batch in live.until(100)]
            assert [event.prompt_tokens for event in got if isinstance(event, Opened)] == list(
                range(first, first + 100)
            )
        assert publisher.dropped == 0
        while (now := idle.batch().seq) == seq + 1:  # it reads at last, and sees that it has lost some
            seq = now
            publisher.publish([opened(0)])
        assert now > seq + 1


def test_an_event_that_cannot_be_encoded_is_dropped_alone() -> None:
    with publishing() as publisher, reader(publisher.endpoint) as sub:
        sub.batch()
        publisher.publish([opened(0), opened(1, "\ud800"), opened(2)])
        publisher.publish([opened(3, "\ud800")])
        publisher.publish([opened(4)])
        first, second = sub.batch(), sub.batch()
        assert (first.events, second.events) == ([opened(0), opened(2)], [opened(4)])
        assert (first.seq, second.seq) == (1, 2)
        assert publisher.dropped == second.dropped == 2


def test_close_sends_what_waits_and_later_events_are_counted() -> None:
    publisher = Publisher(LOCAL, hello=hello)
    with reader(publisher.endpoint) as sub:
        sub.batch()
        for number in range(2000):
            publisher.publish([opened(number)])
        publisher.close(10.0)
        publisher.close()
        assert len(sub.until(2000)) == 2000
    publisher.publish([opened(0), opened(1)])
    assert publisher.dropped == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "desist-events"]


def test_close_with_a_reader_that_never_reads_ends() -> None:
    publisher = Publisher(LOCAL, hello=hello)
    with reader(publisher.endpoint, high_water=1) as sub:
        sub.batch()
        for number in range(5000):
            publisher.publish([Opened(Identity("k", number), number, "active", "x" * 2000)])
        publisher.close(0.1)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "desist-events"])


def test_the_address_is_free_after_close() -> None:
    first = Publisher(LOCAL, hello=hello)
    first.close()
    with publishing(first.endpoint) as second:
        assert second.endpoint == first.endpoint


@pytest.mark.parametrize("wrong", ["nonsense", "tcp://127.0.0.1", "udp://127.0.0.1:0", "tcp://192.0.2.1:5"])
def test_an_address_that_cannot_be_bound_is_named(wrong: str) -> None:
    with pytest.raises(EngineError, match="cannot be bound") as caught:
        Publisher(wrong, hello=hello)
    assert repr(wrong) in str(caught.value)


def test_an_address_in_use_is_named() -> None:
    with publishing() as publisher, pytest.raises(EngineError, match=r"events address .* in use"):
        Publisher(publisher.endpoint, hello=hello)


def test_a_process_that_forgets_to_close_still_ends() -> None:
    code = (
        "from desist.proxy.engines.vllm.inside.publisher import Publisher\n"
        "from desist.proxy.engines.vllm.wire import CommandDone\n"
        f"publisher = Publisher({LOCAL!r}, hello=lambda: CommandDone('', True, ''))\n"
        "publisher.publish([CommandDone('', True, '')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_engine_side_loads_no_web_server() -> None:
    code = (
        "import sys\n"
        "for name in ('vllm', 'fastapi', 'starlette', 'torch'): sys.modules[name] = None\n"
        "import desist.proxy.engines.vllm.inside.publisher, desist.proxy.engines.vllm.inside.commands\n"
        "import desist.proxy.engines.vllm.params, desist.proxy.engines.vllm.config\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
