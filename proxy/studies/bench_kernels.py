"""What the probe kernels cost on this machine: `desist bench kernels`.

First the gate (`kernel_parity`): no figure leaves here unless the kernels did what the specification does, on
this device and in this run. Then times, beside the least bytes that any implementation would have to move.
Where there is no GPU, the kernels cannot run: the torch path alone is measured, and `note` says so.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from desist.kernels.choice import triton_found
from desist.kernels.cost import MODELS, Device, backbone
from desist.proxy.studies.kernel_eager import EagerState, score_step, stream_step
from desist.proxy.studies.kernel_parity import Parity, ParityError, prove, relative_error
from desist.proxy.studies.kernel_step import Shape, Step, make_step
from desist.proxy.studies.kernel_timing import Bandwidth, bandwidth, timed
from desist.proxy.studies.kernel_work import (
    BOTH,
    LOGITS_COPY,
    SCORE,
    STREAM,
    Work,
    by_eager,
    by_kernels,
    least_bytes,
    scored,
    streamed,
)

__all__ = ["KernelBench", "Measured", "PluginShare", "bench_kernels", "plugin_shares"]

EagerScore = Callable[[Step], torch.Tensor]

_MODEL = next(model for model in MODELS if model.name == "Llama-3.1-8B")
_CONTEXT = 2048
# Torch eager's first layer comes out in bfloat16, of 8 significant bits.
_EAGER_BOUND = 2e-2


@dataclass(frozen=True, slots=True)
class Measured:
    """One op, by one provider. `device_us` and `host_us` as in `kernel_timing.Timed`.

    `least_bytes`: what has to be read and written by any implementation; `gb_per_s` and `of_roofline`, the
    share of the memory's bandwidth, are for these (None on a CPU, which has it all in its cache).
    `times_eager`: torch eager's device time over this one.
    """

    op: str
    provider: str
    rows: int
    at_boundary: int
    device_us: float
    host_us: float | None
    least_bytes: int
    gb_per_s: float
    of_roofline: float | None
    times_eager: float | None = None


@dataclass(frozen=True, slots=True)
class PluginShare:
    """Device time of all that the plugin adds to a step, over the least time of an 8B model's own step by the
    cost model: the true share is smaller. `case`: the batch's sampler, and the mode of its requests."""

    case: str
    rows: int
    at_boundary: int
    plugin_us: float
    backbone_us: float
    share: float


@dataclass(frozen=True, slots=True)
class KernelBench:
    """All of it. `note`: what was not measured, and why; empty if nothing."""

    device: str
    note: str
    torch: str
    triton: str | None
    runtime: str | None
    dtype: str
    hidden: int
    taps: int
    bandwidth_gb_per_s: float
    bandwidth_source: str
    parity: tuple[Parity, ...]
    measured: tuple[Measured, ...]
    plugin: tuple[PluginShare, ...]


def bench_kernels(
    *,
    rows: Sequence[int] = (1, 64, 256),
    shares: Sequence[float] = (0.03, 0.25, 1.0),
    shape: Shape = Shape(),  # noqa: B008 (a value, never changed)
    seed: int = 0,
    eager_score: EagerScore = score_step,
    progress: Callable[[str, int, int], None] | None = None,
) -> KernelBench:
    """Measure all ops at all numbers of `rows` and `shares` of them at a boundary; the rest as in `shape`.

    Raises `ParityError`, and measures nothing, where an implementation differs from the specification.
    """
    tell = progress or (lambda what, done, total: None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernels = device.type == "cuda" and triton_found()
    if device.type == "cpu":  # which multiplies bfloat16 many times slower, so nothing runs in it there
        shape = shape._replace(dtype=torch.float32)
    shapes = _shapes(rows, shares, shape)
    tell("parity", 0, 1)
    parity = _gate(device, shapes[-1], seed, eager_score, kernels=kernels)
    tell("parity", 1, 1)
    memory = bandwidth(device)
    measured: list[Measured] = []
    for number, each in enumerate(shapes):
        measured += _measure(make_step(each, device, seed=seed), memory, kernels=kernels)
        tell("shapes", number + 1, len(shapes))
    return KernelBench(
        torch.cuda.get_device_name(device) if kernels else f"cpu, {torch.get_num_threads()} threads",
        _note(device, kernels=kernels),
        torch.__version__,
        _triton_version(),
        torch.version.cuda or torch.version.hip,
        str(shape.dtype).removeprefix("torch."),
        shape.hidden,
        shape.taps,
        memory.bytes_per_s / 1e9,
        memory.source,
        tuple(parity),
        tuple(measured),
        tuple(plugin_shares(measured, memory)) if kernels else (),
    )


def _shapes(rows: Sequence[int], shares: Sequence[float], shape: Shape) -> list[Shape]:
    """Each number of rows with each number at a boundary that the shares come to, at least one."""
    found = [shape._replace(rows=n, at_boundary=max(1, round(share * n))) for n in rows for share in shares]
    return list(dict.fromkeys(found))


def _gate(
    device: torch.device, largest: Shape, seed: int, eager_score: EagerScore, *, kernels: bool
) -> list[Parity]:
    """Kernels against the specification, and torch eager too, lest it be fast by being wrong."""
    small = largest._replace(
        rows=19, at_boundary=5, drafts=2, hidden=min(520, largest.hidden), vocabulary=1000
    )
    types = (torch.bfloat16, torch.float16, torch.float32)
    shapes = (*(small._replace(dtype=dtype) for dtype in types), largest)
    return [
        *(prove(device, "triton", shapes) if kernels else ()),
        *_eager_gate(device, largest, seed, eager_score),
    ]


def _eager_gate(device: torch.device, shape: Shape, seed: int, eager_score: EagerScore) -> Iterator[Parity]:
    step = make_step(shape, device, seed=seed)
    expected = scored(step, "torch")
    pairs = {
        SCORE: (eager_score(step), expected.score[step.chosen]),
        STREAM: (stream_step(step, EagerState.of(step)), streamed(step, expected, "torch")),
    }
    for op, (found, specified) in pairs.items():
        error = relative_error(found, specified)
        if not error <= _EAGER_BOUND:
            raise ParityError(f"{op}: torch eager is off by {error:.1e}. Nothing was measured.")
        yield Parity(op, "torch eager", error, _EAGER_BOUND)


def _measure(step: Step, memory: Bandwidth, *, kernels: bool) -> Iterator[Measured]:
    """All ops of one step, by all providers that run here."""
    eager: dict[str, float] = {}
    for provider, works in _providers(step, kernels=kernels):
        for op, work in works.items():
            found = timed(work, step.device)
            if provider == "torch eager":
                eager[op] = found.device_us
            size = least_bytes(op, step)
            rate = size / (found.device_us / 1e6)
            yield Measured(
                op,
                provider,
                step.shape.rows,
                step.shape.at_boundary,
                *found,
                size,
                rate / 1e9,
                rate / memory.bytes_per_s if step.device.type == "cuda" else None,
                eager[op] / found.device_us if op in eager else None,
            )


def _providers(step: Step, *, kernels: bool) -> Iterator[tuple[str, dict[str, Work]]]:
    """Torch eager first, which the others are compared with. The specification waits for the device at each
    row: it is what runs where there is no GPU, and is measured only there."""
    logits = torch.zeros((step.shape.rows, step.shape.vocabulary), dtype=step.shape.dtype, device=step.device)
    copy: Work = lambda: torch.empty_like(logits, dtype=torch.float32).copy_(logits)  # noqa: E731
    yield "torch eager", {**by_eager(step), LOGITS_COPY: copy}
    if kernels:
        yield "torch.compile", by_eager(step, compiled=True)
        yield "triton", by_kernels(step, "triton")
    else:
        yield "specification", by_kernels(step, "torch")


def plugin_shares(measured: Sequence[Measured], memory: Bandwidth) -> list[PluginShare]:
    """What a step gets longer by. Every mode scores and decides. Where all requests are greedy, or sampled at
    temperature 1 and nothing else, vLLM copies the logits to float32 only because a request is active."""
    device = Device("", memory.bytes_per_s, math.inf)
    at = {(each.op, each.provider, each.rows, each.at_boundary): each.device_us for each in measured}
    found = []
    for op, provider, rows, at_boundary in at:
        if (op, provider) != (BOTH, "triton"):
            continue
        own = at[op, provider, rows, at_boundary]
        copy = at[LOGITS_COPY, "torch eager", rows, at_boundary]
        step = 1e6 * device.seconds(backbone(_MODEL, rows, _CONTEXT))
        for case, total in (
            ("greedy, shadow", own),
            ("greedy, active", own + copy),
            ("sampled, shadow", own),
            ("sampled, active", own),
        ):
            found.append(PluginShare(case, rows, at_boundary, total, step, total / step))
    return found


def _note(device: torch.device, *, kernels: bool) -> str:
    if kernels:
        return ""
    what = "no GPU" if device.type != "cuda" else "no Triton"
    return f"There is {what} here: the kernels cannot run, only the torch path was measured."


def _triton_version() -> str | None:
    return importlib.metadata.version("triton") if triton_found() else None
