"""Hears the engines: reads their events, hands each to the request that waits for it, counts what is missing.

Knows endpoints, numbers of batches and keys; what a request's events mean is `joined`'s. Everything runs on
the event loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.beside.joined import Joined, RequestEvent
from desist.proxy.engines.vllm.wire import WIRE_VERSION, Batch, CommandDone, Hello, decode_batch

__all__ = ["EventStream", "Joined", "RequestEvent"]

logger = logging.getLogger(__name__)
_TOPIC = b"desist"
_HIGH_WATER = 100_000  # batches that may wait here before the engine's side starts to lose them
_BATCHES_A_TURN = 64  # then other tasks have their turn, even if more batches wait


@dataclass(slots=True)
class _Source:
    """One engine's (one data-parallel rank's) publisher. `seq`: the last batch's number."""

    endpoint: str
    seq: int | None = None
    hello: Hello | None = None
    dropped: int = 0


class EventStream:
    """The events of the publishers at `endpoints`, one for each data-parallel rank, in rank order.

    Counters, all since `start`: `taken` events given to a request, `lost` events of requests expected here
    that never came (gaps in their numbers), `missed` batches that never came (gaps in the engine's numbers),
    `dropped` events that the engines say they had no room for, `unknown` events of keys that nobody
    expects, `repeated` events that had come before, `malformed` messages, `restarts` of engines.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._sources = [_Source(endpoint) for endpoint in endpoints]
        self._keys: dict[str, Joined] = {}
        self._answers: dict[str, asyncio.Future[CommandDone]] = {}
        self._context: zmq.asyncio.Context | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._greeted = asyncio.Event()
        self.taken = self.lost = self.missed = self.dropped = 0
        self.unknown = self.repeated = self.malformed = self.restarts = 0

    async def start(self) -> None:
        """Begin to listen. An engine that is not there yet is found when it comes.

        Raises `EngineError` for an address that cannot be connected to.
        """
        self._context = zmq.asyncio.Context()
        sockets = []
        for source in self._sources:
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
            socket.setsockopt(zmq.IPV6, int("[" in source.endpoint))
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
            socket.setsockopt(zmq.SUBSCRIBE, _TOPIC)
            try:
                socket.connect(source.endpoint)
            except zmq.ZMQError as error:
                self._context.destroy(linger=0)
                self._context = None
                raise EngineError(
                    f"the events address {source.endpoint!r} cannot be used: {error}. Give the one that "
                    "the plugin publishes at, such as tcp://127.0.0.1:8111."
                ) from error
            sockets.append(socket)
        self._tasks = [
            asyncio.create_task(self._listen(source, socket), name=f"desist events {source.endpoint}")
            for source, socket in zip(self._sources, sockets, strict=True)
        ]

    async def close(self) -> None:
        """Stop listening; all who wait are let go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for key in list(self._keys):
            self.release(key)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineError("the event stream was closed before the engine answered"))
        self._answers.clear()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def expect(
        self,
        key: str,
        *,
        listen: Callable[[RequestEvent], None] | None = None,
        keep_hidden: bool = False,
    ) -> Joined:
        """Collect the events of `key` from now on: call it before the request is sent.

        `listen` is called at once for each event of the key, hidden states included; they are kept in
        `Joined` only with `keep_hidden`. Raises `EngineError` where the key is in use.
        """
        if key in self._keys:
            raise EngineError(f"the key {key!r} is in use by another request. Make keys unique.")
        joined = self._keys[key] = Joined(key, self.release, listen, keep_hidden)
        return joined

    def release(self, key: str) -> None:
        """Forget a key. Unknown ones do no harm."""
        joined = self._keys.pop(key, None)
        if joined is not None:
            joined.end()

    @property
    def expected(self) -> int:
        """How many keys are expected now."""
        return len(self._keys)

    @property
    def hellos(self) -> tuple[Hello | None, ...]:
        """The newest greeting of each endpoint."""
        return tuple(source.hello for source in self._sources)

    def totals(self) -> Mapping[str, int]:
        """The counters by name, for metrics."""
        names = ("taken", "lost", "missed", "dropped", "unknown", "repeated", "malformed", "restarts")
        return {name: getattr(self, name) for name in names}

    async def hello(self, timeout_s: float) -> tuple[Hello, ...]:
        """The greeting of every endpoint, in their order, waited for up to `timeout_s` seconds.

        Raises `EngineError` naming the silent endpoints, or where the plugin is of another release.
        """
        end = time.monotonic() + timeout_s
        while silent := [source.endpoint for source in self._sources if source.hello is None]:
            self._greeted.clear()
            try:
                await asyncio.wait_for(self._greeted.wait(), end - time.monotonic())
            except TimeoutError:
                unread = f" {self.malformed} messages could not be read." if self.malformed else ""
                raise EngineError(
                    f"no greeting from the plugin at {', '.join(silent)} within {timeout_s:g} s.{unread} Is "
                    "vLLM running there with desist's --additional-config and --logits-processors?"
                ) from None
        found = tuple(source.hello for source in self._sources if source.hello is not None)
        for hello in found:
            if hello.wire != WIRE_VERSION:
                raise EngineError(
                    f"the plugin is desist {hello.version} with wire version {hello.wire}, this proxy speaks "
                    f"version {WIRE_VERSION}. Install the same release on both sides."
                )
        return found

    def answer_to(self, command_id: str) -> asyncio.Future[CommandDone]:
        """The answer to a command, to be asked for before it is sent. Cancel it to stop waiting."""
        future: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        self._answers[command_id] = future
        future.add_done_callback(lambda _: self._answers.pop(command_id, None))
        return future

    async def _listen(self, source: _Source, socket: zmq.asyncio.Socket) -> None:
        turn = 0
        while True:
            frames = await socket.recv_multipart()
            try:
                self._read(source, frames)
            except Exception:  # one bad message must not end the hearing of all
                self.malformed += 1
                logger.exception("a message from %s could not be handled", source.endpoint)
            turn += 1
            if turn % _BATCHES_A_TURN == 0:
                await asyncio.sleep(0)

    def _read(self, source: _Source, frames: Sequence[bytes]) -> None:
        try:
            _topic, number, payload = frames
            batch = decode_batch(payload)
        except (ValueError, RecursionError) as error:
            self.malformed += 1
            if self.malformed <= 10 or self.malformed % 1000 == 0:
                logger.warning("a message from %s is no batch of events: %s", source.endpoint, error)
            if len(frames) == 3 and len(frames[1]) == 8:  # it came, even if it cannot be read
                self._numbered(source, int.from_bytes(frames[1], "big"))
            return
        self._numbered(source, int.from_bytes(number, "big"))
        self._count_dropped(source, batch)
        for event in batch.events:
            if isinstance(event, Hello):
                source.hello = event
                self._greeted.set()
            elif isinstance(event, CommandDone):
                answer = self._answers.get(event.command)
                if answer is not None and not answer.done():
                    answer.set_result(event)
            else:
                self._deliver(source, event)

    def _numbered(self, source: _Source, seq: int) -> None:
        """Note a batch's number: a gap is a loss, a step back another life of the engine."""
        last, source.seq = source.seq, seq
        if last is None or seq == last + 1:
            return
        if seq > last:
            self.missed += seq - last - 1
            return
        self.restarts += 1
        source.hello = None
        source.dropped = 0
        logger.warning("the engine at %s was started again", source.endpoint)
        for joined in self._keys.values():
            joined.broke(source.endpoint)

    def _count_dropped(self, source: _Source, batch: Batch) -> None:
        self.dropped += max(0, batch.dropped - source.dropped)
        source.dropped = batch.dropped

    def _deliver(self, source: _Source, event: RequestEvent) -> None:
        joined = self._keys.get(event.identity.key)
        if joined is None:
            self.unknown += 1
            return
        lost = joined.take(event, source.endpoint)
        if lost is None:
            self.repeated += 1
            return
        self.taken += 1
        self.lost += lost
