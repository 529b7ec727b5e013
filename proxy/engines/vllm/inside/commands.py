"""Takes commands into the engine: a thread reads them, the engine's step picks them up without waiting.

Knows the commands' shapes, not what they do. What can be done beside a step is done in the thread: pings are
answered, the files of a reload are loaded, messages that are no commands are refused.
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
    """Commands that came to `endpoint`, in order.

    `prepare` loads what a `Reload` names; `answer` sends an answer. `handle`, if given, sees each other
    command (with what was prepared) first: an answer of its ends the matter, None leaves the command to
    `take`, so that an idle engine, which has no steps, can still obey. All three run in the inbox's thread,
    and errors in them are told or logged. `capacity`: commands that may wait for a step. Raises
    `EngineError` where the endpoint cannot be bound.
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
        self._closed = False
        self.malformed = 0
        options = {zmq.RCVHWM: capacity, zmq.MAXMSGSIZE: _LARGEST}
        self._socket = BoundSocket(zmq.PULL, endpoint, "commands", options)
        self._socket.serve(self._read, lambda: False)

    @property
    def endpoint(self) -> str:
        """The bound address, with the real port."""
        return self._socket.endpoint

    def take(self) -> list[tuple[Command, object | None]]:
        """The commands since the last call, oldest first, each with what `prepare` made. Never waits."""
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
        for command, _ in self.take():
            self._tell(CommandDone(command.id, False, "the engine ends"))

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
        try:
            self._accept(command)
        except Exception as error:
            logger.exception("desist: the command %s failed", type(command).__name__)
            self._tell(CommandDone(command.id, False, f"{type(error).__name__}: {error}"))

    def _accept(self, command: Command) -> None:
        # One thread for all: a stop sent after a reload waits for its files. Rare, and it keeps the order.
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
