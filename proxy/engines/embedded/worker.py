"""The thread that turns a runner's steps into events on asyncio queues.

Knows threads, event loops and a runner; nothing of requests, prompts or models. An error in one job ends
that job; an error of the whole batch ends every job in it, and the thread goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from desist.controller.core import Mode
from desist.data.errors import EngineError
from desist.proxy.engines.embedded.job import Done, Event, Failed, Job, beside_key
from desist.proxy.engines.embedded.runner import Runner

if TYPE_CHECKING:
    from desist.probes.base import Probe, StreamingProbe

__all__ = ["Stream", "Worker"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Stream:
    """The events of one job on the event loop that waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Event] = asyncio.Queue()


class Worker:
    """Runs a runner in a thread of its own. All methods may be called from any thread."""

    def __init__(self, runner: Runner, name: str = "desist-engine") -> None:
        self._runner = runner
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._streams: dict[Hashable, Stream] = {}
        self._closing = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    @property
    def n_beside(self) -> int:
        """Audited jobs that run on beside their stops, or wait to."""
        return self._runner.n_beside

    def submit(self, job: Job, stream: Stream, beside: Stream | None = None) -> None:
        """Queue a job; its events go to `stream`, the last of them `Done` or `Failed`.

        `beside` gets the events of an audited job that runs on beside its stop.
        """

        def add() -> None:
            self._streams[job.key] = stream
            if beside is not None:
                self._streams[beside_key(job.key)] = beside
            try:
                self._runner.add(job)
            except Exception as error:
                self._send([Failed(job.key, error)])

        self._command(add)

    async def use(self, probe: Probe | None, rom: StreamingProbe | None) -> None:
        """Score with other probes from the next step on. Raises what `Runner.use` raises."""
        await self._between_steps(lambda: self._runner.use(probe, rom))

    async def stop_now(self, key: Hashable) -> bool:
        """Close the thinking of a job by hand; see `Runner.stop_now`."""
        return await self._between_steps(lambda: self._runner.stop_now(key))

    async def _between_steps(self, work: Callable[[], T]) -> T:
        """What `work` gives, or raises, in the thread."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(told: Callable[[], None]) -> None:
            if not done.done():  # whoever waits may have gone
                told()

        def call() -> None:
            try:
                result = work()
            except Exception as error:
                loop.call_soon_threadsafe(settle, partial(done.set_exception, error))
            else:
                loop.call_soon_threadsafe(settle, partial(done.set_result, result))

        self._command(call)
        return await done

    def limit(self, mode: Mode) -> None:
        """No job, waiting or running, uses a mode above `mode` from its next step on."""
        self._command(lambda: self._runner.limit(mode))

    def abort(self, key: Hashable) -> None:
        """Drop a job; its slot is free at the next step."""

        def drop() -> None:
            self._streams.pop(key, None)
            self._runner.abort(key)

        self._command(drop)

    def close(self) -> None:
        """End everything: jobs in flight fail. Returns when the thread has ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            if self._closing or self.failure is not None:
                raise EngineError("the engine is not running. Start it again.")
            self._commands.append(command)
            self._changed.notify()

    def _work(self) -> None:
        try:
            while self._turn():
                pass
            self._send(self._runner.fail_all(EngineError("the engine was closed")))
        except BaseException as error:  # nobody above this thread could tell
            logger.exception("the embedded engine's thread ended")
            self.failure = error
        finally:
            lost = [Failed(key, EngineError("the engine was closed")) for key in self._streams]
            self._send(list(lost))

    def _turn(self) -> bool:
        """Wait for something to do and do it; False when closed."""
        with self._changed:
            while not (self._closing or self._commands or self._runner.busy):
                self._changed.wait()
            if self._closing:
                return False
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()
        if self._runner.busy:
            try:
                events = self._runner.step()
            except Exception as error:
                logger.exception("a step of the embedded engine failed")
                failure = EngineError(f"the engine failed while it generated: {error}")
                failure.__cause__ = error
                events = self._runner.fail_all(failure)
            self._send(events)
        return True

    def _send(self, events: list[Event]) -> None:
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Event]]] = {}
        for event in events:
            stream = self._streams.get(event.key)
            if stream is None:
                continue
            if isinstance(event, (Done, Failed)):
                del self._streams[event.key]
            batches.setdefault(stream.loop, []).append((stream, event))
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed: nobody waits any more
                for _, event in batch:
                    self._streams.pop(event.key, None)
                    self._runner.abort(event.key)


def _deliver(batch: list[tuple[Stream, Event]]) -> None:
    for stream, event in batch:
        stream.queue.put_nowait(event)
