"""Made-up decode steps to measure the kernels on: a probe, requests that think, and what they just read.

Knows shapes and random numbers. Nothing is loaded: how long a kernel takes does not depend on the weights.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from desist.kernels.boundary_score import Automaton, BoundaryState, Flag, Packed, pack
from desist.kernels.decide_and_force import DecideState, Ring, SlotControl, SlotSettings
from desist.kernels.reference import Layer, MinGRUWeights
from desist.kernels.rows import Rows, window_for
from desist.kernels.stream_score import PackedHead, StreamState, pack_head

__all__ = ["CONTROL", "Shape", "Step", "automaton", "draw_token", "make_step"]

_CUES = 64  # tokens 0..63 are cues, all others words
_PROMPT = 100  # position of the prompt's last token
#: A request under a certificate, that nothing stops: what nearly every row of nearly every step is.
CONTROL = SlotControl(lam=1.0, ema=0.5, patience=2, handoff=range(10), locked=(11,))


class Shape(NamedTuple):
    """Sizes of a step. `rows` are dealt to requests of `drafts` + 1 rows each; `vocabulary` is Llama 3's.

    `widths`: outputs of the probe's first two layers; `projection` and `states`: of the streaming head.
    """

    rows: int = 256
    at_boundary: int = 8
    hidden: int = 4096
    taps: int = 3
    drafts: int = 0
    widths: tuple[int, int] = (256, 64)
    projection: int = 64
    states: int = 64
    vocabulary: int = 128_256
    dtype: torch.dtype = torch.bfloat16


@dataclass(slots=True)
class Step:
    """All that the ops need for one step of `shape`, with the states of all three before it.

    `chosen` [M] int64: numbers of the rows at a boundary, in order, which torch eager is told.
    """

    shape: Shape
    rows: Rows
    at: torch.Tensor
    taps: list[torch.Tensor]
    chosen: torch.Tensor
    automaton: Automaton
    probe: Packed
    head: PackedHead
    boundaries: BoundaryState
    decisions: DecideState
    stream: StreamState
    settings: SlotSettings
    ring: Ring

    @property
    def device(self) -> torch.device:
        """Where all of it is."""
        return self.at.device


def automaton(vocabulary: int, device: torch.device | str = "cpu") -> Automaton:
    """One state, always thinking: tokens below `_CUES` are boundaries, every other one is a word."""
    word = Flag.THINKING | Flag.COUNTED | Flag.WHOLE
    kinds = (torch.arange(vocabulary) < _CUES).to(torch.int16)
    return Automaton.of(kinds, [[0, 0]], [[int(word), int(word | Flag.BOUNDARY)]], device=device)


def draw_token(shape: Shape, rng: random.Random) -> int:
    """A token as a model would write it in a text that is full of cues."""
    return rng.randrange(_CUES) if rng.random() < 0.3 else rng.randrange(_CUES, shape.vocabulary)


def make_step(
    shape: Shape, device: torch.device | str = "cpu", *, control: SlotControl = CONTROL, seed: int = 0
) -> Step:
    """The first step after the prompt, with all slots under `control`; the same for the same arguments."""
    rng = torch.Generator().manual_seed(seed)
    number = torch.arange(shape.rows)
    local = number % (shape.drafts + 1)
    token = torch.randint(_CUES, shape.vocabulary, (shape.rows,), generator=rng)
    chosen = torch.randperm(shape.rows, generator=rng)[: shape.at_boundary].sort().values
    token[chosen] = torch.randint(0, _CUES, (len(chosen),), generator=rng)
    columns = (number // (shape.drafts + 1), _PROMPT + 1 + local, token, local)
    slots = int(columns[0].max()) + 1 if shape.rows else 1
    taps = [_normal(rng, shape.rows, shape.hidden).to(device, shape.dtype) for _ in range(shape.taps)]
    step = Step(
        shape,
        Rows(*(column.to(device, torch.int32) for column in columns)),
        torch.arange(shape.rows, dtype=torch.int32, device=device),
        taps,
        chosen.to(device),
        automaton(shape.vocabulary, device),
        _probe(shape, rng, device),
        _head(shape, rng, device),
        BoundaryState(slots, window_for(shape.drafts), device),
        DecideState(slots, window_for(shape.drafts), device),
        StreamState(slots, window_for(shape.drafts), shape.states, device),
        SlotSettings(slots, device=device),
        Ring(device=device),
    )
    for slot in range(slots):
        step.boundaries.enter(slot, _PROMPT, 0)
        step.decisions.enter(slot, _PROMPT)
        step.stream.enter(slot, _PROMPT)
        step.settings.enter(slot, control)
    return step


def _normal(rng: torch.Generator, *size: int) -> torch.Tensor:
    return torch.randn(size, generator=rng)


def _layer(rng: torch.Generator, out: int, inp: int) -> Layer:
    """Outputs of about the size of the inputs, so that scores are spread over 0 to 1."""
    return Layer(_normal(rng, out, inp) * (2 / inp) ** 0.5, _normal(rng, out) * 0.1)


def _probe(shape: Shape, rng: torch.Generator, device: torch.device | str) -> Packed:
    sizes = (shape.taps * shape.hidden, *shape.widths, 1)
    layers = [_layer(rng, out, inp) for inp, out in pairwise(sizes)]
    return pack(layers, shape.dtype, shape.taps, device)


def _head(shape: Shape, rng: torch.Generator, device: torch.device | str) -> PackedHead:
    projection, states = shape.projection, shape.states
    weights = MinGRUWeights(
        _layer(rng, projection, shape.hidden),
        _layer(rng, states, projection),
        _layer(rng, states, projection),
        _layer(rng, 1, states + projection),
    )
    return pack_head(weights, shape.dtype, device)
