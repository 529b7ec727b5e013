"""A ZeroMQ socket that the engine's own steps use, and a thread that looks after it while there are none.

Knows threads, turns and closing; nothing of what the messages mean. Sending and reading happen in whatever
thread has its turn, without ever waiting for the network or for a turn: a message that is handed to another
thread waits for the interpreter, for up to half a second beside a busy engine.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import zmq

from desist.data.errors import EngineError

__all__ = ["BoundSocket"]

logger = logging.getLogger(__name__)
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 30_000
_READS_A_TURN = 256
#: How long a message may wait where no step comes: an engine without requests, or in a long prefill.
_EVERY_S = 0.02


class BoundSocket:
    """Binds `endpoint` in the constructor, so that `endpoint` then has the real port.

    `what` names the socket in errors and the thread. Raises `EngineError` where it cannot be bound.
    """

    def __init__(self, kind: int, endpoint: str, what: str, options: Mapping[zmq.SocketOption, int]) -> None:
        self._what = what
        # A context of its own: ending it must not end, or wait for, sockets of vLLM.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        try:
            self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
            for option, value in options.items():
                self._socket.setsockopt(option, value)
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise EngineError(
                f"the {what} address {endpoint!r} cannot be bound: {error}. Choose another one in "
                "--additional-config, such as tcp://127.0.0.1:0 for any free port."
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._linger_ms = 0
        self._thread: threading.Thread | None = None

    def serve(self, look: Callable[[], None]) -> None:
        """Start the thread: it calls `look` every 20 ms, and once more when the socket is closed."""
        self._thread = threading.Thread(
            target=self._serve, args=(look,), name=f"desist-{self._what}", daemon=True
        )
        self._thread.start()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether the socket may be used inside the `with`: no other thread does. Never waits for it."""
        mine = self._turn.acquire(blocking=False)
        try:
            yield mine and not self._socket.closed
        finally:
            if mine:
                self._turn.release()

    def read(self) -> list[list[bytes]]:
        """The messages that are there. Only in one's turn."""
        found: list[list[bytes]] = []
        while len(found) < _READS_A_TURN and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            found.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return found

    def send(self, frames: Sequence[bytes]) -> None:
        """Send, only in one's turn. Raises `zmq.Again` rather than wait."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self, timeout_s: float) -> None:
        """Do the work that is left, give it `timeout_s` seconds to leave the machine, end the thread."""
        self._linger_ms = max(0, int(timeout_s * 1000))
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout_s + 1.0)

    def _serve(self, look: Callable[[], None]) -> None:
        try:
            while not self._closing.wait(_EVERY_S):
                look()
            look()
        except Exception:  # nobody above this thread could tell
            logger.exception("desist: the thread of the %s socket ended", self._what)
        finally:
            with self._turn:
                self._context.destroy(linger=self._linger_ms)
