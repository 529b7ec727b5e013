"""A proxy as a process of its own: draining at a signal, and several workers on one socket."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from desist.data.errors import ControlError
from desist.proxy import Settings
from desist.proxy.lifecycle.workers import refuse_workers
from desist.proxy.settings import MonitorSettings, UpstreamSettings
from tests.fakes.server import HTTP, wait_for
from tests.fakes.slow_upstream import SlowUpstream

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}]}


@contextmanager
def serving(upstream: str, *flags: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`desist serve` in front of `upstream`, and its base address."""
    command = [sys.executable, "-c", "from desist.cli import main; main()", "serve", "--upstream", upstream]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json", "--quiet", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DESIST_UPSTREAM__SELF_TEST": "false", **environ},
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        assert "url" in told, told
        yield process, told["url"].removesuffix("/v1")
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@contextmanager
def streaming(base: str) -> Iterator[Iterator[str]]:
    with httpx.stream("POST", base + CHAT, json=ASK | {"stream": True}, timeout=30) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def test_a_signal_drains() -> None:
    upstream = SlowUpstream(every_s=0.1, chunks=25)
    with upstream.served() as behind, serving(behind) as (process, base), streaming(base) as lines:
        assert HTTP.get(f"{base}/readyz").status_code in (200, 503)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: "shutting down" in HTTP.get(f"{base}/readyz").text)
        refused = HTTP.post(base + CHAT, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        text = list(lines)
        assert "data: [DONE]" in text
        assert '"finish_reason":"stop"' in "".join(text)
        assert len(upstream.calls) == 1
        assert process.wait(10) == 0


def test_the_drain_ends_and_says_so() -> None:
    upstream = SlowUpstream(every_s=0.1, chunks=1000)
    with (
        upstream.served() as behind,
        serving(behind, DESIST_DRAIN_S="0.5") as (process, base),
        streaming(base) as lines,
    ):
        process.send_signal(signal.SIGTERM)
        text = [line for line in lines if line]
        assert text[-1] == "data: [DONE]"
        told = json.loads(text[-2].removeprefix("data: "))
        assert (told["error"]["status"], told["error"]["code"]) == (503, "shutting_down")
        assert '"finish_reason":"' not in "".join(text)
        assert process.wait(10) == 0
        wait_for(lambda: len(upstream.left) == 1)


def test_a_second_signal_ends_at_once() -> None:
    upstream = SlowUpstream(every_s=0.1, chunks=1000)
    with upstream.served() as behind, serving(behind) as (process, base), streaming(base) as lines:
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: "shutting down" in HTTP.get(f"{base}/readyz").text)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    wait_for(lambda: len(upstream.left) == 1)


def _children(pid: int) -> Sequence[int]:
    """The workers among the processes that `pid` started (the library's own helper is none)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"spawn_main" in command:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc to find the workers")
def test_workers_share_a_socket_a_mode_and_counts() -> None:
    upstream = SlowUpstream(every_s=0.0, chunks=2)
    flags = ("--workers", "2")
    with (
        upstream.served() as behind,
        serving(behind, *flags, DESIST_OPERATOR_KEYS='["op-key-1"]') as (process, base),
    ):
        first = _children(process.pid)
        assert len(first) == 2

        def served() -> float:
            told = httpx.get(f"{base}/metrics").text
            rows = re.findall(r"^desist_requests_total\{.*chat/completions.*\} (.*)$", told, re.MULTILINE)
            return sum(map(float, rows))

        def modes() -> set[str]:
            """What fresh connections are told, by whichever worker takes them."""
            return {httpx.post(base + CHAT, json=ASK).headers["x-desist-mode"] for _ in range(12)}

        for _ in range(12):
            assert httpx.post(base + CHAT, json=ASK).status_code == 200
        wait_for(lambda: served() == 12)
        assert {served() for _ in range(6)} == {12}  # whichever worker is asked

        switched = httpx.post(
            f"{base}/desist/v1/mode", json={"mode": "shadow"}, headers={"authorization": "Bearer op-key-1"}
        )
        assert switched.status_code == 200
        assert modes() == {"shadow"}

        os.kill(first[0], signal.SIGKILL)
        wait_for(lambda: len(set(_children(process.pid)) - {first[0]}) == 2, 60)
        assert httpx.post(base + CHAT, json=ASK).status_code == 200
        os.kill(first[1], signal.SIGKILL)  # now only workers are left that were not there at the call
        wait_for(lambda: len(set(_children(process.pid)) - set(first)) == 2, 60)
        assert modes() == {"shadow"}

        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        end = time.monotonic() + 5
        while any(Path(f"/proc/{pid}").exists() for pid in first) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in first)


def test_workers_need_a_server_behind_and_no_state_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"--workers needs a server behind.*--upstream"):
        refuse_workers(Settings())
    behind = UpstreamSettings(url="http://127.0.0.1:9/v1")
    refuse_workers(Settings(engine="upstream", upstream=behind))
    with pytest.raises(ControlError, match=r"monitor.state"):
        refuse_workers(
            Settings(engine="upstream", upstream=behind, monitor=MonitorSettings(state=tmp_path / "state"))
        )
