"""The work of one step, op by op, as each provider does it, and the least bytes that it takes.

Knows ops and providers; no clocks. Every piece of work does the same at each call: states are kept by
position, so a step that is run again starts from the same entries and writes the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from desist.kernels.boundary_score import Scored, boundary_score
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import Decided, decide, force
from desist.kernels.stream_score import stream_score
from desist.proxy.studies.kernel_eager import EagerState, decide_step, score_step, stream_step
from desist.proxy.studies.kernel_step import CONTROL, Step

__all__ = [
    "BOTH",
    "DECIDE",
    "LOGITS_COPY",
    "SCORE",
    "STREAM",
    "Work",
    "by_eager",
    "by_kernels",
    "decided",
    "least_bytes",
    "scored",
    "streamed",
]

Work = Callable[[], object]

SCORE, DECIDE, STREAM = "boundary_score", "decide_and_force", "stream_score"
BOTH = f"{SCORE} + {DECIDE}"
LOGITS_COPY = "float32 logits copy"

# Of a row without its hidden states: token, slot, position, tables, settings, entries, results. An op of its
# own moves about half of it.
_ROW_BYTES = 256


def scored(step: Step, impl: Impl) -> Scored:
    """`boundary_score` of the step."""
    return boundary_score(
        step.taps, step.at, step.rows, step.automaton, step.boundaries, step.probe, impl=impl
    )


def decided(step: Step, found: Scored, logits: torch.Tensor, impl: Impl) -> Decided:
    """`decide` on what was found, and `force` on `logits`."""
    what = (found.flags, found.count, found.zone, found.score)
    decided = decide(step.rows, *what, step.settings, step.decisions, step.ring, impl=impl)
    force(logits, decided, step.rows, step.settings, impl=impl)
    return decided


def streamed(step: Step, found: Scored, impl: Impl) -> torch.Tensor:
    """`stream_score` of the step; its tap is the first one."""
    return stream_score(step.taps[0], step.at, step.rows, found.flags, step.stream, step.head, impl=impl)


def by_kernels(step: Step, impl: Impl) -> dict[str, Work]:
    """The ops behind their public doors."""
    logits = torch.zeros((step.shape.rows, step.shape.vocabulary), device=step.device)
    found = scored(step, impl)
    return {
        SCORE: lambda: scored(step, impl),
        DECIDE: lambda: decided(step, found, logits, impl),
        BOTH: lambda: decided(step, scored(step, impl), logits, impl),
        STREAM: lambda: streamed(step, found, impl),
    }


def by_eager(step: Step, *, compiled: bool = False) -> dict[str, Work]:
    """The ops in plain torch (see `kernel_eager` for what they leave out), or compiled from that."""
    state = EagerState.of(step)
    made: Callable[[Callable[..., Any]], Callable[..., Any]] = _compiled if compiled else lambda each: each
    score, decide_rows, stream = made(score_step), made(decide_step), made(stream_step)

    def stops(found: torch.Tensor) -> object:
        lam = math.inf if CONTROL.lam is None else CONTROL.lam
        return decide_rows(step, state, found, lam=lam, ema=CONTROL.ema, patience=CONTROL.patience)

    found = score(step)
    return {
        SCORE: lambda: score(step),
        DECIDE: lambda: stops(found),
        BOTH: lambda: stops(score(step)),
        STREAM: lambda: stream(step, state),
    }


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for all sizes: a compilation for each would take longer than all the measuring."""
    made: Callable[..., Any] = torch.compile(function, dynamic=True)
    return made


def least_bytes(op: str, step: Step) -> int:
    """What any implementation of `op` reads and writes at the least: weights and hidden states once, the
    states of the slots, and a little for each row."""
    shape = step.shape
    size = step.taps[0].element_size()
    if op == LOGITS_COPY:
        return shape.rows * shape.vocabulary * (size + 4)
    if op == STREAM:
        weights = sum(part.numel() * part.element_size() for part in step.head)
        return weights + shape.rows * (shape.hidden * size + 2 * 4 * shape.states + _ROW_BYTES // 2)
    little = shape.rows * (_ROW_BYTES if op == BOTH else _ROW_BYTES // 2)
    if op == DECIDE:
        return little
    weights = sum(part.numel() * part.element_size() for layer in step.probe.layers for part in layer)
    return weights + shape.at_boundary * shape.taps * shape.hidden * size + little
