"""The child process: waited for, watched, ended with all its own children, never started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.beside.child import Child
from tests.fakes.server import wait_for

SERVER = """
import http.server, os, signal, subprocess, sys
port, behaviour, pids = int(sys.argv[1]), sys.argv[2], sys.argv[3]
print("loading weights", flush=True)
if behaviour == "fails":
    print("out of memory", file=sys.stderr, flush=True)
    sys.exit(3)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(pids, "w").write(f"{os.getpid()} {worker.pid}")
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if behaviour == "sick" else 200)
        self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class House:
    """A child over a small HTTP server with a worker process of its own."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pids_file = folder / "pids"
        self.lines: list[str] = []
        script = folder / "server.py"
        script.write_text(SERVER)
        arguments = (str(script), str(port), behaviour, str(self.pids_file))
        self.child = Child(arguments, f"http://127.0.0.1:{port}/health", log=self.lines.append, stop_s=1.0)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.pids_file.read_text().split()]


def alive(pid: int) -> bool:
    """Whether the process runs (one that is dead, but not yet collected by init, does not)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("timed out")


def run(house: House, what: Callable[[Child], Awaitable[None]]) -> None:
    async def body() -> None:
        try:
            await what(house.child)
        finally:
            await house.child.close()
            await house.child.close()

    asyncio.run(body())


@pytest.mark.parametrize("behaviour", ["well", "deaf"])
def test_it_is_waited_for_and_ended_with_its_workers(tmp_path: Path, behaviour: str) -> None:
    house = House(tmp_path, behaviour)

    async def what(child: Child) -> None:
        await child.start(60)
        assert child.failure is None
        assert house.lines == ["loading weights"]
        assert os.getpgid(house.pids[0]) == child.pid != os.getpgid(0)
        assert os.getsid(house.pids[0]) == os.getsid(0)  # Linux shares its time out by session
        assert all(map(alive, house.pids))

    run(house, what)
    assert house.child.failure is None  # it was told to end
    wait_for(lambda: not any(map(alive, house.pids)))


def test_a_failed_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    house = House(tmp_path, "fails")

    async def what(child: Child) -> None:
        with pytest.raises(
            EngineError,
            match=r"(?s)ended with exit code 3.*not started again.*loading weights\nout of memory",
        ):
            await child.start(60)

    run(house, what)


def test_a_start_that_takes_too_long_is_told(tmp_path: Path) -> None:
    house = House(tmp_path, "sick")

    async def what(child: Child) -> None:
        with pytest.raises(
            EngineError, match=r"(?s)did not serve within 3 s \(vllm.start_s\).*loading weights"
        ):
            await child.start(3.0)

    run(house, what)
    wait_for(lambda: not any(map(alive, house.pids)))


def test_a_death_is_told_and_takes_the_workers_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(tmp_path, "well")

    async def what(child: Child) -> None:
        await child.start(60)
        os.kill(house.pids[0], signal.SIGKILL)
        await until(lambda: child.failure is not None)
        assert child.failure is not None
        assert "was ended by signal 9; it is not started again" in child.failure
        await until(lambda: not alive(house.pids[1]))

    run(house, what)
    assert "was ended by signal 9" in caplog.text


PARENT = """
import asyncio, sys
from desist.proxy.engines.vllm.beside.child import Child
async def main():
    child = Child(tuple(sys.argv[2:]), sys.argv[1])
    await child.start(60)
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_it_ends_when_the_proxy_is_killed(tmp_path: Path) -> None:
    house = House(tmp_path, "well")
    command = [sys.executable, "-c", textwrap.dedent(PARENT), house.child._health, *house.child._arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
    wait_for(lambda: not alive(house.pids[0]))
    os.kill(house.pids[1], signal.SIGKILL)  # vLLM's own processes follow their parent; this one does not
