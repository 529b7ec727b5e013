"""Runs the Triton kernels of `stream_score`: buffers, grids, four launches, and no wait for the device.

Everything here follows from sizes and types that the host knows; the flags stay on the device.
"""

from __future__ import annotations

import torch

from desist.kernels.rows import Rows
from desist.kernels.stream_score.head import PackedHead
from desist.kernels.stream_score.shapes import (
    NUM_STAGES,
    NUM_WARPS,
    ROW_TILE,
    gate_tiles,
    padded,
    parts,
    project_tiles,
    reduce_block,
    row_groups,
)
from desist.kernels.stream_score.state import StreamState
from desist.kernels.stream_score.triton_project import project, reduce
from desist.kernels.stream_score.triton_walk import gates, walk

__all__ = ["launch"]


def launch(
    hidden: torch.Tensor,
    at: torch.Tensor,
    rows: Rows,
    flags: torch.Tensor,
    state: StreamState,
    head: PackedHead,
) -> torch.Tensor:
    """Score [R]; see the door of this package. Updates `state`."""
    count, device = at.shape[0], hidden.device
    score = torch.empty(count, device=device)
    if not count:
        return score
    slot, position, local = (part.contiguous() for part in (rows.slot, rows.position, rows.local))
    at, flags = at.contiguous(), flags.contiguous()

    projected = _projected(hidden, at, slot, flags, head)
    gated = torch.empty((2, count, head.states), device=device)
    row_tiles = parts(count, ROW_TILE)
    small = gate_tiles(head.projection, tensor_cores=head.gates.dtype == torch.bfloat16)
    gates[row_tiles, parts(head.states, small.block_h)](
        projected, slot, flags, head.gates, head.gates_bias, gated, count, head.states, head.projection,
        ROW_TILE=ROW_TILE, BLOCK_H=small.block_h, BLOCK_P=small.block_p,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    walk[(count,)](
        slot, position, local, flags, gated, projected, head.out, head.out_bias,
        state.position, state.h, score, count, state.window, head.states, head.projection,
        BLOCK_H=padded(head.states), BLOCK_P=padded(head.projection),
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return score


def _projected(
    hidden: torch.Tensor, at: torch.Tensor, slot: torch.Tensor, flags: torch.Tensor, head: PackedHead
) -> torch.Tensor:
    """Projection [R, P] of the rows that count; the others' rows are left as they are."""
    count, device = at.shape[0], hidden.device
    alike = hidden.dtype == head.inp.dtype and hidden.dtype != torch.float32
    tiles = project_tiles(
        head.width, head.projection, weight_bytes=head.inp.element_size(), tensor_cores=alike
    )
    columns, splits = parts(head.projection, tiles.block_n), tiles.splits(head.width)
    partial = torch.empty((splits, count, head.projection), device=device)
    project[columns, splits, row_groups(count, columns * splits)](
        hidden, at, slot, flags, head.inp, partial, count, head.width, head.projection, tiles.steps,
        *hidden.stride(),
        ROW_TILE=ROW_TILE, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, HELD=tiles.held,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    projected = torch.empty((count, head.projection), device=device)
    block = reduce_block(head.projection)
    reduce[parts(count, ROW_TILE), parts(head.projection, block)](
        partial, slot, flags, head.inp_bias, projected, count, splits, head.projection,
        ROW_TILE=ROW_TILE, BLOCK_N=block, num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return projected
