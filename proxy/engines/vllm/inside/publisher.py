"""Sends events out of the engine: a bounded queue in front of a ZeroMQ publisher.

The pattern of vLLM's KV events: frames are topic, sequence number and a MessagePack batch. Knows no
requests. Who publishes also sends, unless another thread is at it; who does not listen, or not fast enough,
loses events and can tell so by the numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from desist.proxy.engines.vllm.sockets import BoundSocket
from desist.proxy.engines.vllm.wire import Batch, Event, encode

__all__ = ["TOPIC", "Publisher"]

logger = logging.getLogger(__name__)
TOPIC = b"desist"
#: Batches that wait for one slow subscriber before it starts to lose some.
_HIGH_WATER = 10_000


class Publisher:
    """Publishes batches of events at `endpoint`, to any number of subscribers, from any thread.

    `rank` stands in each batch (it does not change the endpoint). `capacity`: events that may wait for
    another thread's turn to end. `hello` is called for each new subscriber, by whoever notices it.
    Raises `EngineError` where the endpoint cannot be bound.
    """

    def __init__(
        self, endpoint: str, *, rank: int = 0, capacity: int = 100_000, hello: Callable[[], Event]
    ) -> None:
        self._rank, self._capacity, self._hello = rank, capacity, hello
        self._lock = threading.Lock()
        self._queue: deque[tuple[float, list[Event]]] = deque()
        self._waiting = 0
        self._dropped = 0
        self._closed = False
        self._seq = 0
        # XPUB shows subscriptions; verbose, also the second one to the same topic.
        options = {zmq.XPUB_VERBOSE: 1, zmq.SNDHWM: _HIGH_WATER}
        self._socket = BoundSocket(zmq.XPUB, endpoint, "events", options)
        self._socket.serve(self.pump)

    @property
    def endpoint(self) -> str:
        """The bound address, with the real port."""
        return self._socket.endpoint

    @property
    def dropped(self) -> int:
        """Events lost here: no room in the queue, published after `close`, or not to be encoded."""
        return self._dropped

    def publish(self, events: Sequence[Event]) -> None:
        """Queue the events of one step as one batch. Never waits for the network, never raises.

        A batch that finds no room is dropped whole and its events are counted.
        """
        if not events:
            return
        with self._lock:
            if self._closed or self._waiting + len(events) > self._capacity:
                self._dropped += len(events)
                return
            self._queue.append((time.time(), list(events)))
            self._waiting += len(events)
        self.pump()

    def close(self, timeout: float = 1.0) -> None:
        """Send what waits, for `timeout` seconds at most, and end the thread. May be called again."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._socket.close(timeout)

    def pump(self) -> None:
        """Greet and send what waits, unless another thread is at it. Never waits, never raises."""
        with self._socket.turn() as mine:
            if mine:
                for frames in self._socket.read():
                    self._subscribed(frames)
                while self._send_next():
                    pass

    def _subscribed(self, frames: list[bytes]) -> None:
        if not frames[0].startswith(b"\x01"):
            return
        try:
            hello = self._hello()
        except Exception:
            logger.exception("desist: no greeting for a new subscriber")
            return
        self._send(time.time(), [hello], self._dropped)

    def _send_next(self) -> bool:
        with self._lock:
            if not self._queue:
                return False
            sent_at, events = self._queue.popleft()
            self._waiting -= len(events)
            dropped = self._dropped
        self._send(sent_at, events, dropped)
        return True

    def _send(self, ts: float, events: list[Event], dropped: int) -> None:
        """One batch out. Only numbers that were sent are used, so that a gap means a loss on the way."""
        try:
            payload = encode(Batch(self._seq, ts, self._rank, dropped, events))
        except Exception as error:  # a key that is no valid Unicode, for one
            kept = [event for event in events if _encodes(event)]
            with self._lock:
                self._dropped += len(events) - len(kept)
            logger.warning("desist: %d events cannot be encoded: %s", len(events) - len(kept), error)
            if 0 < len(kept) < len(events):
                self._send(ts, kept, self._dropped)
            return
        try:
            self._socket.send([TOPIC, self._seq.to_bytes(8, "big"), payload])
        except zmq.ZMQError:
            with self._lock:
                self._dropped += len(events)
            return
        self._seq += 1


def _encodes(event: Event) -> bool:
    try:
        encode(event)
    except Exception:
        return False
    return True
