"""Random automata, steps and probes, and outputs that start as rubbish."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from desist.kernels import Layer
from desist.kernels.boundary_score import Automaton, BoundaryState, Packed, pack
from desist.kernels.rows import IDLE, Rows

#: Where kernels run: on a GPU if there is one, else interpreted.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 50
STATES = 7


def automaton(seed: int, every_n: int = 0) -> Automaton:
    rng = random.Random(seed)
    classes = 11
    return Automaton.of(
        [rng.randrange(classes) for _ in range(VOCABULARY)],
        [[rng.randrange(STATES) for _ in range(classes)] for _ in range(STATES)],
        [[rng.choice((0, 2, 6, 14, 14, 14, 15, 30, 31)) for _ in range(classes)] for _ in range(STATES)],
        every_n=every_n,
        device=DEVICE,
    )


def rows_of(*requests: tuple[int, int, Sequence[int]]) -> Rows:
    """`requests`: slot, position of the first row, its tokens."""
    columns: list[tuple[int, int, int, int]] = [
        (slot, first + local, token, local)
        for slot, first, tokens in requests
        for local, token in enumerate(tokens)
    ]
    return Rows(*torch.tensor(columns, dtype=torch.int32, device=DEVICE).reshape(-1, 4).T)


class Step(NamedTuple):
    """Rows, and states before them: one for each implementation."""

    rows: Rows
    states: dict[str, BoundaryState]
    requests: list[tuple[int, int, list[int]]]


def step(seed: int, count: int, window: int) -> Step:
    """`count` rows of requests that were entered, were not, are nobody's, or read an impossible token."""
    rng = random.Random(seed)
    requests: list[tuple[int, int, list[int]]] = []
    states = {impl: BoundaryState(count + 1, window, DEVICE) for impl in ("torch", "triton")}
    slots = list(range(count + 1))
    rng.shuffle(slots)
    left = count
    while left:
        length = min(left, rng.randint(1, window - 1))
        slot, first = slots.pop(), rng.randint(1, 400)
        tokens = [rng.randrange(VOCABULARY) for _ in range(length)]
        fate = rng.random()
        if fate < 0.1:
            slot = IDLE
        elif fate < 0.2:
            tokens[rng.randrange(length)] = rng.choice((-1, VOCABULARY, 2**31 - 1))
        known = first - 1 if fate < 0.9 else first + 5
        entry = {"count": rng.randrange(40), "periods": rng.randrange(4), "zone": rng.randrange(-1, 9)}
        node = rng.randrange(STATES)
        for state in states.values() if slot != IDLE else ():
            state.enter(slot, known, node, **entry)
        requests.append((slot, first, tokens))
        left -= length
    return Step(rows_of(*requests), states, requests)


def layers(*sizes: int, seed: int = 0) -> list[Layer]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Layer(torch.randn(o, i, generator=generator) / i**0.5, torch.randn(o, generator=generator))
        for i, o in pairwise(sizes)
    ]


def probe(hidden: int, taps: int, *widths: int, dtype: torch.dtype = torch.float32) -> Packed:
    return pack(layers(hidden * taps, *widths, seed=hidden + taps), dtype, taps, DEVICE)


def hidden_states(
    tokens: int, hidden: int, taps: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, hidden, generator=generator).to(DEVICE, dtype) for _ in range(taps)]


def places(rows: int, chosen: int, tokens: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Which token each of `rows` reads, and `chosen` of the rows."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(tokens, (rows,), generator=generator).to(DEVICE, torch.int32)
    return at, torch.randperm(rows, generator=generator)[:chosen].to(DEVICE, torch.int32)
