"""Events of a request in vLLM as the plugin would send them, and a bare subscriber to read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq

from desist.proxy.engines.vllm.wire import (
    WIRE_VERSION,
    Batch,
    Blocked,
    Closed,
    Event,
    Hello,
    Identity,
    Opened,
    Scored,
    Stopped,
    Told,
    decode_batch,
)

ON = Told("continue", "none", 5)


def hello(rank: int = 0, version: str = "1", wire: int = WIRE_VERSION) -> Hello:
    return Hello(
        wire, version, "0.32.0", "v1", rank, "engine", None, (4,), 64, ("probe",), {}, "active", True
    )


def scored(identity: Identity, n: int, hidden: bytes | None = None) -> Scored:
    kind = "float32" if hidden is not None else None
    return Scored(identity, n, n, 5 * n, 5 * n, "cue", "Wait", {"probe": 0.5}, ON, False, hidden, kind)


def life(identity: Identity, middle: int, hidden: bytes | None = None) -> list[Event]:
    """All events of one request that has `middle` numbered ones, the last of them a stop, one a block."""
    events: list[Event] = [Opened(identity, 10, "active")]
    for n in range(middle):
        if n == middle - 1:
            events.append(Stopped(identity, n, Told("stop", "probe", 5 * n, n, 0.9), 5 * n, (1, 2)))
        elif n == middle - 2:
            events.append(Blocked(identity, n, 5 * n, "masked"))
        else:
            events.append(scored(identity, n, hidden))
    return [*events, Closed(identity, middle, 100, 5 * middle, 2, "probe" if middle else "natural")]


class Reader:
    """A subscriber without any of our code."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def batch(self, timeout_s: float = 20.0) -> Batch:
        """The next batch, whose frames are checked. Fails after `timeout_s` seconds."""
        assert self.socket.poll(int(timeout_s * 1000)), "no batch came"
        topic, number, payload = self.socket.recv_multipart()
        batch = decode_batch(payload)
        assert (topic, number) == (b"desist", batch.seq.to_bytes(8, "big"))
        return batch

    def until(self, events: int) -> list[Batch]:
        """Batches until they hold so many events besides greetings."""
        batches: list[Batch] = []
        while events > 0:
            batches.append(self.batch())
            events -= sum(not isinstance(event, Hello) for event in batches[-1].events)
        return batches


@contextlib.contextmanager
def reader(endpoint: str, high_water: int = 0) -> Iterator[Reader]:
    """Subscribes to `endpoint`; `high_water` messages wait here at most (0: any number)."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, high_water)
        socket.setsockopt(zmq.SUBSCRIBE, b"desist")
        socket.connect(endpoint)
        yield Reader(socket)
    finally:
        context.destroy(linger=0)
