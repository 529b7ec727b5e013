"""A real HTTP server in a thread, on a free port of the loopback address."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from desist.proxy.lifecycle.serve import listen

# One client for all tests: making one costs more than a request (it reads all certificates).
HTTP = httpx.Client(timeout=30)


@contextmanager
def live_server(
    app: Any, start_s: float = 60, on_server: Callable[[Callable[[], None]], None] | None = None
) -> Iterator[str]:
    """Serves `app` and gives its base address. The lifespan of the app is run, within `start_s` seconds.

    `on_server` is given what closes the listening socket, to be called from the app itself.
    """
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), start_s)
        assert server.started, "the server did not start"
        if on_server is not None:
            on_server(lambda: _stop_listening(server))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


def _stop_listening(server: uvicorn.Server) -> None:
    for each in server.servers:
        each.close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Returns when `condition` holds; fails after `timeout_s` seconds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
