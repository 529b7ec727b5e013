"""A ZeroMQ socket that is bound at once and then served by one thread of its own.

Knows threads, waking and closing; nothing of what the messages mean. Nothing here makes another thread
wait for the network.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

import zmq

from desist.data.errors import EngineError

__all__ = ["BoundSocket"]

logger = logging.getLogger(__name__)
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 30_000
_READS_A_TURN = 256


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
        # A pair of sockets, not a pipe: a wake after close is then an error, never a byte in another's file.
        self._sleeper, self._waker = socket.socketpair()
        self._sleeper.setblocking(False)
        self._waker.setblocking(False)
        self._closing = False
        self._linger_ms = 0
        self._thread: threading.Thread | None = None

    def serve(self, read: Callable[[list[bytes]], None], work: Callable[[], bool]) -> None:
        """Start the thread: `read` gets each message; `work` runs after each wake, again if it says True."""
        self._thread = threading.Thread(
            target=self._serve, args=(read, work), name=f"desist-{self._what}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Have `work` run soon. From any thread; never waits, never raises."""
        with contextlib.suppress(OSError):  # full: it is awake already; closed: nobody is there to wake
            self._waker.send(b"\0")

    def send(self, frames: Sequence[bytes]) -> None:
        """Send from within `read` or `work`. Raises `zmq.Again` rather than wait."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self, timeout_s: float) -> None:
        """Do the work that is left, give it `timeout_s` seconds to leave the machine, end the thread."""
        self._linger_ms = max(0, int(timeout_s * 1000))
        self._closing = True
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout_s + 1.0)

    def _serve(self, read: Callable[[list[bytes]], None], work: Callable[[], bool]) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._sleeper, zmq.POLLIN)
        more = True
        try:
            while not self._closing:
                ready = dict(poller.poll(0 if more else None))
                if self._sleeper.fileno() in ready:
                    self._drain()
                if self._socket in ready:
                    self._read_waiting(read)
                more = work()
            while work():
                pass
        except Exception:  # nobody above this thread could tell
            logger.exception("desist: the thread of the %s socket ended", self._what)
        finally:
            self._waker.close()
            self._sleeper.close()
            self._context.destroy(linger=self._linger_ms)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._sleeper.recv(4096):
                pass

    def _read_waiting(self, read: Callable[[list[bytes]], None]) -> None:
        for _ in range(_READS_A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            read(frames)
