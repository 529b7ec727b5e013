"""Many streams read at once by a client that costs next to nothing; when each chunk came, and what a
server's CPU did.

Run as a process of its own: `python -m desist.proxy.studies.stream_load SPEC`, SPEC a JSON object with the
fields of `Load`. Prints one JSON object (`Heard`); the latencies of all chunks in its window go to the file
`out`, as raw int64 (ns). Latency: from the time that the fake upstream wrote into a chunk to the moment its
bytes were read here.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

__all__ = ["Heard", "Load", "main"]

_STAMP = re.compile(rb"T(\d{9,})")
_START_S = 30.0
_SETTLE_S = 0.5
_WAIT_MS, _WAIT_MS_A_STREAM = 1000, 8
_BUFFER_BYTES = 32_768


@dataclass(frozen=True, slots=True)
class Load:
    """What to read. `gap_us` 0: as fast as it comes. `extra`: further request fields. `watch`: pid of the
    proxy."""

    port: int
    path: str
    streams: int
    gap_us: int
    seconds: float
    extra: Mapping[str, object]
    out: str
    watch: int | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """What came in the window: chunks, seconds, CPU seconds of the watched process, streams that broke
    off."""

    chunks: int
    seconds: float
    cpu_s: float
    broken: int


class _Reader(asyncio.Protocol):
    """One stream. `both`: the text stands twice in a chunk; equal neighbours are one chunk."""

    def __init__(self, request: bytes, into: _Window) -> None:
        self._request, self._into = request, into
        self._rest, self._last = b"", 0
        self.transport: asyncio.Transport | None = None
        self.begun = self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop registers only the base class
        self.transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self.broken = True

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data
        end = 0
        for found in _STAMP.finditer(data):
            if found.end() == len(data):  # the number may go on in the next read
                end = found.start()
                break
            stamp = int(found[1])
            end = found.end()
            if stamp != self._last:
                self._last = stamp
                self.begun = True
                if self._into.open:
                    self._into.latencies.append(now - stamp)
        self._rest = data[max(end, len(data) - 64) :]


class _Window:
    def __init__(self) -> None:
        self.open = False
        self.latencies = array("q")


async def _read(load: Load) -> tuple[Heard, array[int]]:
    wait_ms = _WAIT_MS + _WAIT_MS_A_STREAM * load.streams  # all are to begin before the first goes on
    body = {
        "model": f"paced-{load.gap_us}-{wait_ms}",
        "messages": [{"role": "user", "content": "How many are 17 apples and 25 pears?"}],
        "stream": True,
        **load.extra,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    window = _Window()
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(load.streams):
        _, reader = await loop.create_connection(
            lambda: _Reader(head.encode() + data, window), "127.0.0.1", load.port
        )
        if not load.gap_us and reader.transport is not None:
            sock = reader.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        readers.append(reader)
    end = time.monotonic() + _START_S
    while not all(reader.begun for reader in readers):
        if time.monotonic() > end or any(reader.broken for reader in readers):
            sys.exit(f"{sum(r.begun for r in readers)} of {load.streams} streams began within {_START_S:g} s")
        await asyncio.sleep(0.02)
    await asyncio.sleep(_SETTLE_S + wait_ms / 1000)
    cpu, began, window.open = _cpu_s(load.watch), time.monotonic(), True
    await asyncio.sleep(load.seconds)
    window.open = False
    seconds, cpu = time.monotonic() - began, _cpu_s(load.watch) - cpu
    heard = Heard(len(window.latencies), seconds, cpu, sum(reader.broken for reader in readers))
    for reader in readers:
        if reader.transport is not None:
            reader.transport.abort()
    return heard, window.latencies


def _cpu_s(pid: int | None) -> float:
    """CPU seconds of all threads of a process so far; 0 for none."""
    if pid is None:
        return 0.0
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def main() -> None:
    """Read the streams that the argument names."""
    from desist.proxy.lifecycle.event_loop import run

    load = Load(**json.loads(sys.argv[1]))
    heard, latencies = run(_read(load))
    Path(load.out).write_bytes(latencies.tobytes())
    sys.stdout.write(json.dumps(asdict(heard)))


if __name__ == "__main__":
    main()
