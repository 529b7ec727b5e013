"""A client that leaves stops the generation: streamed or not, before or after the first byte."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from desist.proxy import Settings, create_app
from desist.proxy.engines.base import Delta
from desist.proxy.settings import StreamSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine([Delta("reasoning", "on and on ")] * 2000, pause_s=0.02)


@pytest.fixture(scope="module")
def base(engine: FakeEngine) -> Iterator[str]:
    with live_server(create_app(Settings(), engine=engine, certificates=[])) as address:
        yield address


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize(("stream", "silent"), [(True, False), (True, True), (False, False)])
def test_leaving_stops_the_generation(
    base: str, engine: FakeEngine, stream: bool, silent: bool, choices: int
) -> None:
    engine.requests.clear()
    engine.stopped_early.clear()
    engine.first_pause_s = 30.0 if silent else 0.0
    body = json.dumps(
        {"messages": [{"role": "user", "content": "x"}], "stream": stream, "n": choices}
    ).encode()
    address = urlsplit(base)
    with socket.create_connection((str(address.hostname), address.port or 0)) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        wait_for(lambda: len(engine.requests) == choices)
        if stream and not silent:
            assert b"200 OK" in sock.recv(4096)
    left = time.monotonic()
    wait_for(lambda: len(engine.stopped_early) == choices)
    assert time.monotonic() - left < 2.0
    wait_for(lambda: "desist_requests_in_flight 0.0" in HTTP.get(f"{base}/metrics").text)


def test_leaving_a_stream_that_only_beats() -> None:
    silent = FakeEngine(first_pause_s=30.0)
    settings = Settings(stream=StreamSettings(heartbeat_s=0.05))
    with live_server(create_app(settings, engine=silent, certificates=[])) as base:
        address = urlsplit(base)
        with socket.create_connection((str(address.hostname), address.port or 0)) as sock:
            body = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
            sock.sendall(f"{head}\r\n\r\n".encode() + body)
            received = b""
            while received.count(b": ping") < 2:
                received += sock.recv(4096)
        wait_for(lambda: len(silent.stopped_early) == 1)


def test_disconnects_are_counted(base: str) -> None:
    text = HTTP.get(f"{base}/metrics").text
    count = next(line for line in text.splitlines() if line.startswith("desist_client_disconnects_total"))
    assert float(count.split()[1]) >= 1
    assert 'status="499"' in text
