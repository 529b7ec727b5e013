"""What the proxy adds to each streamed chunk: latency and CPU, against the same upstream read directly.

Upstream, load client and proxy are three processes; the proxy has one core to itself where there are more.
Direct and proxied slices take turns in one run, so that a machine that slows down slows both. Knows processes
and percentiles; the fake upstream and the client are `paced_upstream` and `stream_load`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from desist.data.errors import EngineError
from desist.proxy.lifecycle.event_loop import loop_name
from desist.proxy.studies.stream_load import Heard, Load

__all__ = ["Level", "ProxyBench", "Side", "bench_proxy"]

Progress = Callable[[str, int, int], None]
STREAMS = (1, 64, 512)
CONTROL = {"desist": {"budget": 1_000_000}}  # parsed and watched at every chunk, never reached
_PATH = "/v1/chat/completions"
# Each pace is a model of its own: the self-test would examine it while its chunks are timed.
_ENVIRON = {"DESIST_UPSTREAM__SELF_TEST": "false"}


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the upstream, over all slices: latency of a chunk in ms, chunks per second that arrived."""

    p50_ms: float
    p99_ms: float
    delivered_per_s: float
    chunks: int
    broken_streams: int


@dataclass(frozen=True, slots=True)
class Level:
    """`added_*`: proxied less direct percentile. `overloaded`: under 99 % of the offered chunks arrived."""

    streams: int
    gap_ms: float
    offered_per_s: float | None
    direct: Side
    proxied: Side
    added_p50_ms: float
    added_p99_ms: float
    cpu_us_per_chunk: float
    cores_per_1000_chunks_s: float
    overloaded: bool


@dataclass(frozen=True, slots=True)
class ProxyBench:
    """All levels. `zero_gap`: as fast as it goes at 64 streams (chunks come coalesced: no per-token
    figure)."""

    levels: tuple[Level, ...]
    zero_gap: Level
    seconds: float
    slice_s: float
    control: dict[str, Any]
    proxy_cores: tuple[int, ...]
    other_cores: tuple[int, ...]
    loop: str
    python: str


def bench_proxy(
    *,
    seconds: float = 30.0,
    slice_s: float = 5.0,
    gap_ms: float = 10.0,
    streams: Sequence[int] = STREAMS,
    progress: Progress = lambda what, done, total: None,
) -> ProxyBench:
    """Measure each number of streams for `seconds` a side. Raises `EngineError` where a process fails."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own, others = ((cores[-1],), tuple(cores[:-1])) if len(cores) > 1 else (tuple(cores), tuple(cores))
    with _upstream(others) as upstream, _proxy(upstream, own) as (port, pid):
        bench = _Bench(upstream, port, pid, others, seconds, slice_s, progress)
        levels = tuple(bench.level(count, gap_ms) for count in streams)
        flood = bench.level(64, 0.0)
    return ProxyBench(
        levels, flood, seconds, min(slice_s, seconds), CONTROL, own, others, loop_name(),
        platform.python_version(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Bench:
    upstream: int
    proxy: int
    pid: int
    cores: tuple[int, ...]
    seconds: float
    slice_s: float
    progress: Progress

    def level(self, streams: int, gap_ms: float) -> Level:
        turns = max(1, round(self.seconds / self.slice_s))
        slices = [(turn, way) for turn in range(turns) for way in (0, 1)]
        heard: tuple[list[Heard], list[Heard]] = ([], [])
        times: tuple[list[Any], list[Any]] = ([], [])
        for done, (turn, way) in enumerate(slices):
            way = way ^ (turn % 2)  # each side goes first as often
            found, latencies = self._slice(streams, gap_ms, proxied=bool(way))
            heard[way].append(found)
            times[way].append(latencies)
            self.progress(
                f"{streams} streams, {f'{gap_ms:g} ms' if gap_ms else 'no'} gap", done + 1, len(slices)
            )
        offered = streams * 1000 / gap_ms if gap_ms else None
        direct, proxied = _side(heard[0], times[0]), _side(heard[1], times[1])
        cpu_us = sum(each.cpu_s for each in heard[1]) / max(1, proxied.chunks) * 1e6
        return Level(
            streams, gap_ms, offered, direct, proxied,
            proxied.p50_ms - direct.p50_ms, proxied.p99_ms - direct.p99_ms, cpu_us, cpu_us / 1000,
            offered is not None and proxied.delivered_per_s < 0.99 * offered,
        )  # fmt: skip

    def _slice(self, streams: int, gap_ms: float, *, proxied: bool) -> tuple[Heard, Any]:
        seconds = min(self.slice_s, self.seconds)
        usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        with tempfile.NamedTemporaryFile() as out:
            load = Load(
                self.proxy if proxied else self.upstream, _PATH, streams, round(gap_ms * 1000), seconds,
                CONTROL if proxied else usage, out.name, self.pid if proxied else None,
            )  # fmt: skip
            command = [sys.executable, "-m", "desist.proxy.studies.stream_load", json.dumps(asdict(load))]
            ran = subprocess.run(command, capture_output=True, preexec_fn=lambda: _pin(self.cores))
            if ran.returncode:
                reason = ran.stderr.decode(errors="replace").strip()[-500:]
                raise EngineError(f"the load client failed: {reason}")
            return Heard(**json.loads(ran.stdout)), np.fromfile(out.name, np.int64)


def _side(heard: Sequence[Heard], latencies: Sequence[Any]) -> Side:
    values = np.concatenate(latencies)
    if not len(values):
        raise EngineError("no chunk arrived. Measure for longer, or with fewer streams.")
    p50, p99 = np.percentile(values, (50, 99)) / 1e6
    seconds = sum(each.seconds for each in heard)
    return Side(float(p50), float(p99), len(values) / seconds, len(values), sum(e.broken for e in heard))


def _pin(cores: Sequence[int]) -> None:
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def _process(command: Sequence[str], cores: Sequence[int]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process pinned to `cores`, and the first line it prints."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **_ENVIRON},
        preexec_fn=lambda: _pin(cores),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode().strip()
        if not line.isdigit() and '"url"' not in line:
            errors.seek(0)
            raise EngineError(
                f"a process of the bench could not start: {line} {errors.read().decode()[-500:]}"
            )
        yield process, line
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        errors.close()


@contextlib.contextmanager
def _upstream(cores: Sequence[int]) -> Iterator[int]:
    with _process(["-m", "desist.proxy.studies.paced_upstream"], cores) as (_, line):
        yield int(line)


@contextlib.contextmanager
def _proxy(upstream: int, cores: Sequence[int]) -> Iterator[tuple[int, int]]:
    url = f"http://127.0.0.1:{upstream}/v1"
    command = [
        "-c",
        "from desist.cli import main; main()",
        "serve",
        "--upstream",
        url,
        "--port",
        "0",
        "--json",
        "--quiet",
    ]
    with _process(command, cores) as (process, line):
        port = urlsplit(json.loads(line)["url"]).port or 0
        time.sleep(1.0)  # the self-test of the upstream goes by
        yield port, process.pid
