"""Runs the proxy under uvicorn until it is told to stop. Prints nothing; the command line does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from desist.data.errors import ControlError
from desist.proxy.app import create_app
from desist.proxy.engines.base import Engine
from desist.proxy.settings import Settings

__all__ = ["listen", "serve"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket (port 0: any free one). Raises `ControlError` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's delay off (40 ms a response) only then.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ControlError(
            f"cannot listen on {host}, port {port}: {error}. Give another --port (0: any free one) or --host."
        ) from error
    return sock


def serve(
    settings: Settings,
    *,
    engine: Engine | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let streams finish for `settings.drain_s` seconds.

    `announce` is called once with the base address, when requests are accepted. Raises what stopped the
    start: `ControlError` (address taken), `NotOffered`, `ArtifactMismatch`, `EngineError`.
    """
    with listen(settings.host, settings.port) as sock:
        app = create_app(settings, engine=engine)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            server_header=False,
        )
        asyncio.run(_run(app, _Server(config), sock, announce))


async def _run(
    app: FastAPI, server: _Server, sock: socket.socket, announce: Callable[[str], None] | None
) -> None:
    """The lifespan is run here, not by uvicorn, which would log a failed start and swallow its error."""
    with _ending_the_start() as start:
        async with app.router.lifespan_context(app):
            start.over()
            # What was loaded stays. To look through it again would stop all streams for a moment.
            gc.collect()
            gc.freeze()
            server.told_started = lambda: announce(_address(sock)) if announce else None
            await server.serve(sockets=[sock])


class _Start:
    """The start of the app, which may take minutes and may start processes: SIGTERM must end it in order."""

    def __init__(self) -> None:
        self.told_to_stop = False
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._loop.add_signal_handler(signal.SIGTERM, self._stop)

    def over(self) -> None:
        """From now on uvicorn takes the signals."""
        if self._listens:
            self._listens = False
            self._loop.remove_signal_handler(signal.SIGTERM)

    def _stop(self) -> None:
        self.told_to_stop = True
        if self._task is not None:
            self._task.cancel()


@contextlib.contextmanager
def _ending_the_start() -> Iterator[_Start]:
    start = _Start()
    try:
        yield start
    except asyncio.CancelledError:
        if not start.told_to_stop:
            raise
    finally:
        start.over()


class _Server(uvicorn.Server):
    """uvicorn, telling when it accepts requests, and returning after a signal instead of raising it again."""

    told_started: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.told_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
