"""Heads, steps and states to try `stream_score` with, on the machine's GPU if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.reference import Layer, MinGRUWeights
from desist.kernels.rows import IDLE, Rows, window_for
from desist.kernels.stream_score import PackedHead, StreamState, pack_head, stream_score
from desist.kernels.stream_score.state import EMPTY

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
READ = int(Flag.COUNTED | Flag.THINKING | Flag.WHOLE)
PASSED = int(Flag.THINKING | Flag.WHOLE)


def weights(width: int, projection: int, states: int, *, seed: int = 0) -> MinGRUWeights:
    rng = torch.Generator().manual_seed(seed)

    def layer(inputs: int, outputs: int) -> Layer:
        matrix = torch.randn(outputs, inputs, generator=rng) / inputs**0.5
        return Layer(matrix, torch.randn(outputs, generator=rng) / 2)

    return MinGRUWeights(
        layer(width, projection),
        layer(projection, states),
        layer(projection, states),
        layer(states + projection, 1),
    )


def packed(width: int, projection: int, states: int, dtype: torch.dtype = torch.float32) -> PackedHead:
    return pack_head(weights(width, projection, states), dtype, DEVICE)


def rows_of(requests: Sequence[tuple[int, int, int]]) -> Rows:
    """Rows of requests (slot, first position, number of rows), in this order."""
    table = [(slot, first + j, 0, j) for slot, first, count in requests for j in range(count)]
    columns = torch.tensor(table, dtype=torch.int32, device=DEVICE).reshape(-1, 4).T
    return Rows(*(column.contiguous() for column in columns))


class Step(NamedTuple):
    """What one call takes besides state and head."""

    hidden: torch.Tensor
    at: torch.Tensor
    rows: Rows
    flags: torch.Tensor


def some_step(count: int, width: int, drafts: int, dtype: torch.dtype, *, seed: int = 0) -> Step:
    """`count` rows of requests of 1 to `drafts` + 1 rows, some idle, some that do not count.

    Request i has slot i and begins at position 10 + i. Rows read shuffled tokens.
    """
    rng = torch.Generator().manual_seed(seed)
    requests: list[tuple[int, int, int]] = []
    left = count
    while left:
        taken = min(left, int(torch.randint(1, drafts + 2, (), generator=rng)))
        requests.append((len(requests), 10 + len(requests), taken))
        left -= taken
    rows = rows_of(requests)
    idle = (torch.rand(len(requests) + 1, generator=rng) < 0.1).to(DEVICE)[rows.slot.long()]
    rows = rows._replace(slot=rows.slot.masked_fill(idle, IDLE))
    read = torch.rand(count, generator=rng) < 0.8
    flags = torch.full((count,), PASSED, dtype=torch.uint8).masked_fill(read, READ).to(DEVICE)
    hidden = torch.randn(count + 3, width, generator=rng).to(DEVICE, dtype)
    at = torch.randperm(count + 3, generator=rng)[:count].int().to(DEVICE)
    return Step(hidden, at, rows, flags)


def entered(slots: int, states: int, drafts: int) -> StreamState:
    """A state in which slot i has read up to position 9 + i, with some history."""
    rng = torch.Generator().manual_seed(1)
    state = StreamState(slots, window_for(drafts), states, DEVICE)
    for slot in range(slots):
        state.enter(slot, 9 + slot, torch.randn(states, generator=rng).to(DEVICE))
    return state


def copied(state: StreamState) -> StreamState:
    twin = StreamState(*state.h.shape, DEVICE)
    twin.position.copy_(state.position)
    twin.h.copy_(state.h)
    return twin


def known(state: StreamState) -> torch.Tensor:
    """What a state holds: entries that hold nothing read as NaN."""
    return torch.where((state.position == EMPTY)[..., None], torch.nan, state.h)


def run(step: Step, state: StreamState, head: PackedHead, impl: str = "triton") -> torch.Tensor:
    return stream_score(*step, state, head, impl=impl)  # type: ignore[arg-type]
