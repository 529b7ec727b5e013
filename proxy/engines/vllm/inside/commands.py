"""Takes commands into the engine: a step picks up what has come, without waiting.

Knows the commands' shapes, not what they do. Where no step comes a thread reads them: it answers pings, obeys
for an engine that is idle, and always is the one that loads the files of a reload.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

import msgspec
import zmq

from desist.proxy.engines.vllm.sockets import BoundSocket
from desist.proxy.engines.vllm.wire import Command, CommandDone, Ping, Reload, decode_command

__all__ = ["CommandInbox"]

logger = logging.getLogger(__name__)
_LARGEST = 1 << 20  # bytes; a command has a few hundred


class CommandInbox:
    """Commands that came to `endpoint`, in order, save that nothing waits for the files of a reload.

    `prepare` loads what a `Reload` names, in the inbox's thread; `answer` sends an answer. `handle`, if
    given, sees each other command (with what was prepared) first: an answer of its ends the matter, None
    leaves the command to `take`, so that an idle engine, which has no steps, can still obey. Errors in them
    are told or logged. `capacity`: commands that may wait for a step. Raises `EngineError` where the
    endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        prepare: Callable[[Reload], object],
        answer: Callable[[CommandDone], object],
        handle: Callable[[Command, object | None], CommandDone | None] | None = None,
        capacity: int = 10_000,
    ) -> None:
        self._prepare, self._answer, self._handle = prepare, answer, handle
        self._capacity = capacity
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Command, object | None]] = deque()
        self._reloads: deque[Reload] = deque()  # whose files are to be loaded
        self._closed = False
        self.malformed = 0
        options = {zmq.RCVHWM: capacity, zmq.MAXMSGSIZE: _LARGEST}
        self._socket = BoundSocket(zmq.PULL, endpoint, "commands", options)
        self._socket.serve(self._look)

    @property
    def endpoint(self) -> str:
        """The bound address, with the real port."""
        return self._socket.endpoint

    def take(self) -> list[tuple[Command, object | None]]:
        """The commands since the last call, oldest first, each with what `prepare` made. Never waits."""
        self._read_all()
        if not self._waiting:
            return []
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def close(self, timeout: float = 1.0) -> None:
        """End the thread, for which `timeout` seconds are waited. Commands not taken are answered."""
        if self._closed:
            return
        self._closed = True
        self._socket.close(timeout)
        while self._waiting:
            command, _ = self._waiting.popleft()
            self._tell(CommandDone(command.id, False, "the engine ends"))

    def _look(self) -> None:
        self._read_all()
        while self._reloads:
            self._guarded(self._reloads.popleft())

    def _read_all(self) -> None:
        with self._socket.turn() as mine:
            for frames in self._socket.read() if mine else ():
                self._read(frames)

    def _read(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise msgspec.DecodeError(f"a command is one frame, this has {len(frames)}")
            command = decode_command(frames[0])
        except (msgspec.DecodeError, RecursionError) as error:
            self.malformed += 1
            logger.warning("desist: a message that is no command: %s", error)
            name = _name_in(frames)
            if name is not None:
                self._tell(CommandDone(name, False, f"not a command that this release knows: {error}"))
            return
        if isinstance(command, Reload):
            self._reloads.append(command)  # for the thread: a step never waits for a file
        else:
            self._guarded(command)

    def _guarded(self, command: Command) -> None:
        try:
            self._accept(command)
        except Exception as error:
            logger.exception("desist: the command %s failed", type(command).__name__)
            self._tell(CommandDone(command.id, False, f"{type(error).__name__}: {error}"))

    def _accept(self, command: Command) -> None:
        prepared = self._prepare(command) if isinstance(command, Reload) else None
        done = self._handle(command, prepared) if self._handle is not None else None
        if done is None and isinstance(command, Ping):
            done = CommandDone(command.id, True, "listening")
        if done is not None:
            self._tell(done)
            return
        with self._lock:
            room = len(self._waiting) < self._capacity
            if room:
                self._waiting.append((command, prepared))
        if not room:
            self._tell(
                CommandDone(
                    command.id,
                    False,
                    f"{self._capacity} commands wait for the engine's next step. Send it again later.",
                )
            )

    def _tell(self, done: CommandDone) -> None:
        try:
            self._answer(done)
        except Exception:
            logger.exception("desist: an answer to a command could not be sent")


def _name_in(frames: list[bytes]) -> str | None:
    """The id in a message that looks like a command, so that its sender can be told."""
    try:
        content = msgspec.msgpack.decode(frames[0])
    except (msgspec.DecodeError, RecursionError):
        return None
    name = content.get("id") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None
