"""How long a step's kernels take on the device, and how long the host takes to launch them.

Knows callables and devices, nothing of what is run. On a GPU the launches are recorded once into a graph, so
that what is timed is the device alone, and a large buffer is written before each run, because in a decode
step the model's own weights would have driven the probe's out of the cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

__all__ = ["Bandwidth", "Timed", "bandwidth", "timed"]

Step = Callable[[], object]

_RUNS = {"cuda": 50, "cpu": 15}
_FLUSH_BYTES = 512 * 2**20  # ten times the second-level cache of an H200 (50 MB), twice an MI300X's (256 MB)
_COPY_BYTES = {"cuda": 2 * 2**30, "cpu": 2**28}

#: Bytes a second of memory, from the makers' data sheets, by what torch calls the device.
_DATA_SHEETS = {
    "B200": 8.0e12,
    "H200": 4.8e12,
    "H100 PCIe": 2.0e12,
    "H100 80GB HBM3": 3.35e12,
    "A100-SXM4-80GB": 2.039e12,
    "A100-SXM4-40GB": 1.555e12,
    "MI300X": 5.3e12,
    "L40S": 0.864e12,
}


class Timed(NamedTuple):
    """Medians in microseconds. `device_us`: from the first kernel to the last, without launches; on a CPU the
    whole call. `host_us`: until the call returns to Python; None on a CPU, where it is the same."""

    device_us: float
    host_us: float | None


class Bandwidth(NamedTuple):
    """Bytes a second, and where the number is from."""

    bytes_per_s: float
    source: str


def timed(step: Step, device: torch.device, runs: int | None = None) -> Timed:
    """Time `step`, which must do the same work at each call and not wait for the device."""
    runs = runs or _RUNS[device.type]
    if device.type != "cuda":
        step()
        return Timed(statistics.median(_wall(step) for _ in range(runs)), None)
    host = _host(step, runs)
    graph = _recorded(step)
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]  # type: ignore[no-untyped-call]
    for begin, end in marks:
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return Timed(statistics.median(1e3 * begin.elapsed_time(end) for begin, end in marks), host)


def _wall(step: Step) -> float:
    start = time.perf_counter_ns()
    step()
    return (time.perf_counter_ns() - start) / 1e3


def _host(step: Step, runs: int) -> float:
    """Each call finds an idle device, so that it does not wait for room in the queue."""
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        found.append(_wall(step))
    torch.cuda.synchronize()
    return statistics.median(found)


def _recorded(step: Step) -> torch.cuda.CUDAGraph:
    """`step` as a graph; what it compiles or allocates for the first time is done before."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def bandwidth(device: torch.device) -> Bandwidth:
    """Of `device`'s memory: the data sheet's, or that of a copy, which reads and writes each byte."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, rate in _DATA_SHEETS.items():
            if known in name:
                return Bandwidth(rate, f"data sheet, {known}")
    size = _COPY_BYTES[device.type]
    here = torch.zeros(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(here)
    copied = timed(lambda: there.copy_(here), device, runs=10)
    return Bandwidth(2 * size / (copied.device_us / 1e6), f"measured by a copy of {size >> 20} MiB")
