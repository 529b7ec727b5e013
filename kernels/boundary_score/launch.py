"""Launches the kernels: allocates, picks shapes, never waits for the device and never reads from it.

The grid depends on the number of rows alone, so a captured graph of the launches stays valid while the
rows change. How many rows are scored is known only on the device; programs that have none end at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desist.kernels.boundary_score import shapes
from desist.kernels.boundary_score.automaton import Automaton
from desist.kernels.boundary_score.outcome import Found, Scored
from desist.kernels.boundary_score.packed import MAX_TAPS, PADDING, Packed
from desist.kernels.boundary_score.state import BoundaryState
from desist.kernels.boundary_score.triton_find import _find
from desist.kernels.boundary_score.triton_mlp import _finish, _first_layer
from desist.kernels.choice import interpreting
from desist.kernels.rows import Rows

__all__ = ["boundary_score", "find_boundaries", "mlp_score_rows"]


def find_boundaries(rows: Rows, automaton: Automaton, state: BoundaryState) -> Found:
    """See `reference.find_boundaries`."""
    return _launch_find(rows, automaton, state, None)


def boundary_score(
    taps: Sequence[torch.Tensor],
    at: torch.Tensor,
    rows: Rows,
    automaton: Automaton,
    state: BoundaryState,
    probe: Packed,
) -> Scored:
    """See `reference.boundary_score`."""
    score = torch.empty(rows.slot.shape, dtype=torch.float32, device=rows.slot.device)
    found = _launch_find(rows, automaton, state, score)
    _launch_mlp(taps, at, found.compact, found.n, probe, score, scatter=True)
    return Scored(*found, score)


def mlp_score_rows(
    taps: Sequence[torch.Tensor], at: torch.Tensor, chosen_rows: torch.Tensor, probe: Packed
) -> torch.Tensor:
    """See `reference.mlp_score_rows`."""
    count = len(chosen_rows)
    score = torch.empty(count, dtype=torch.float32, device=chosen_rows.device)
    n = torch.full((1,), count, dtype=torch.int32, device=chosen_rows.device)
    _launch_mlp(taps, at, chosen_rows.contiguous(), n, probe, score, scatter=False)
    return score


def _launch_find(rows: Rows, automaton: Automaton, state: BoundaryState, score: torch.Tensor | None) -> Found:
    """Clears `score` on the way, where there is one."""
    count = len(rows.slot)
    device = rows.slot.device
    compact, counts, zones = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(3))
    found = Found(
        torch.empty(count, dtype=torch.uint8, device=device),
        counts,
        zones,
        compact,
        torch.empty(1, dtype=torch.int32, device=device),
    )
    if count == 0:
        found.n.zero_()
        return found
    shape = shapes.find(count)
    _find[(1,)](
        *(column.contiguous() for column in rows),
        count,
        automaton.token_class,
        automaton.next,
        automaton.flags,
        len(automaton.token_class),
        automaton.next.shape[1],
        automaton.every_n,
        state.position,
        state.automaton,
        state.count,
        state.periods,
        state.zone,
        *found,
        found.zone if score is None else score,
        WINDOW=state.window,
        WITH_SCORE=score is not None,
        BLOCK=shape.block,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    return found


def _launch_mlp(
    taps: Sequence[torch.Tensor],
    at: torch.Tensor,
    chosen: torch.Tensor,
    n: torch.Tensor,
    probe: Packed,
    score: torch.Tensor,
    *,
    scatter: bool,
) -> None:
    """Scores the first `n` of the row numbers `chosen` [M] into `score`."""
    places = len(chosen)
    if places == 0:
        return
    weight, bias = probe.layers[0]
    width, padded = len(bias), len(probe.bias1)
    single = taps[0].dtype != weight.dtype or weight.dtype == torch.float32
    shape = shapes.first_layer(probe.hidden, probe.taps, width, single=single)
    splits = probe.taps * shape.splits_per_tap
    partial = torch.empty((splits, places, padded), dtype=torch.float32, device=score.device)
    # The kernel takes eight taps; it looks at no more than there are.
    eight = [*taps, *[taps[0]] * (MAX_TAPS - len(taps))]
    _first_layer[(-(-width // shape.block_n), splits)](
        *eight,
        *(tap.stride(0) for tap in eight),
        *(tap.stride(1) for tap in eight),
        at.contiguous(),
        chosen,
        n,
        weight,
        partial,
        places,
        probe.hidden,
        width,
        padded // PADDING,
        TAPS=probe.taps,
        SPLITS_PER_TAP=shape.splits_per_tap,
        CHUNKS=shape.chunks,
        # The interpreter multiplies bfloat16 as the integers that it is stored in. Products of 16-bit
        # numbers are exact in float32, so nothing else changes.
        SINGLE=single or interpreting(),
        BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n,
        BLOCK_K=shape.block_k,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    _launch_finish(partial, chosen, n, probe, score, scatter=scatter)


def _launch_finish(
    partial: torch.Tensor,
    chosen: torch.Tensor,
    n: torch.Tensor,
    probe: Packed,
    score: torch.Tensor,
    *,
    scatter: bool,
) -> None:
    """Adds the splits [splits, M, P1] and runs the other layers; one that is missing is not looked at."""
    layers = probe.layers
    second, third = (layers[min(number, len(layers) - 1)] for number in (1, 2))
    splits, places, padded1 = partial.shape
    width2 = len(second.bias)
    shape = shapes.finish(padded1, width2)
    _finish[(places,)](
        partial,
        chosen,
        n,
        probe.bias1,
        probe.weight2,
        second.bias,
        third.weight,
        third.bias,
        score,
        places,
        padded1 // PADDING,
        width2,
        LAYERS=len(probe.layers),
        SPLITS=splits,
        SCATTER=scatter,
        BLOCK_S=shape.block_s,
        BLOCK_1=shape.block_1,
        BLOCK_2=shape.block_2,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
