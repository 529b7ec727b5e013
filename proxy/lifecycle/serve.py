"""Runs the proxy under uvicorn until it is told to stop. Prints nothing; the command line does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from desist.data.errors import ControlError
from desist.proxy.access.middleware import refuse_open
from desist.proxy.app import create_app
from desist.proxy.engines.base import Engine
from desist.proxy.lifecycle.event_loop import run
from desist.proxy.lifecycle.team_member import Membership
from desist.proxy.settings import Settings, Source
from desist.proxy.state import ProxyState, state_of_app

__all__ = ["address_of", "listen", "serve", "serve_on"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CLOSING_S = 2  # for the last events of streams that are ended, and for connections to close


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
    source: Source | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain: not ready, no new requests, streams may finish.

    What still runs after `settings.drain_s` seconds is ended with an error; a second signal ends all at once.
    `announce` is called once with the base address, when requests are accepted. `source`: where `settings`
    were read from; it is followed (None: they stay as they are). Raises what stopped the
    start: `ControlError` (address taken), `NotOffered`, `ArtifactMismatch`, `EngineError`.
    """
    refuse_open(settings)
    with listen(settings.host, settings.port) as sock:
        serve_on(sock, settings, engine=engine, announce=announce, source=source)


def serve_on(
    sock: socket.socket,
    settings: Settings,
    *,
    engine: Engine | None = None,
    announce: Callable[[str], None] | None = None,
    until: int | None = None,
    source: Source | None = None,
    membership: Membership | None = None,
) -> None:
    """`serve` on a socket that listens already. `until`: a descriptor at whose end the proxy drains too.

    `membership`: what makes it one of several workers.
    """
    app = create_app(settings, engine=engine, source=source, membership=membership)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_CLOSING_S,
        server_header=False,
    )
    run(_run(app, _Server(config, state_of_app(app), until), sock, announce))


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
            server.told_started = lambda: announce(address_of(sock)) if announce else None
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
    """uvicorn, telling when it accepts requests, draining at a signal before it closes, and returning after
    it.

    uvicorn alone would close its socket first: nobody could ask whether the proxy is ready, or be told to
    come again.
    """

    told_started: Callable[[], None]

    def __init__(self, config: uvicorn.Config, state: ProxyState, until: int | None) -> None:
        super().__init__(config)
        self._state, self._until = state, until
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._until is not None:
            asyncio.get_running_loop().add_reader(self._until, self._stop)
        if self.started:
            self.told_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._until is not None:
            asyncio.get_running_loop().remove_reader(self._until)
            self._until = None
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
        elif self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        admission, settings = self._state.admission, self._state.settings
        admission.drain()
        await asyncio.sleep(settings.drain_notice_s)
        if not await admission.drained(settings.drain_s):
            admission.expire()
            await admission.drained(_CLOSING_S)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._loop = asyncio.get_running_loop()
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self.handle_exit) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def address_of(sock: socket.socket) -> str:
    """The base address of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
