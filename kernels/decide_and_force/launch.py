"""Launches the kernels: allocates, picks shapes, never waits for the device and never reads from it."""

from __future__ import annotations

import torch

from desist.kernels.decide_and_force import shapes
from desist.kernels.decide_and_force.outcome import Decided
from desist.kernels.decide_and_force.reference import LOWEST
from desist.kernels.decide_and_force.ring import Ring
from desist.kernels.decide_and_force.settings import SlotSettings
from desist.kernels.decide_and_force.state import DecideState
from desist.kernels.decide_and_force.triton_decide import _decide
from desist.kernels.decide_and_force.triton_force import _force
from desist.kernels.rows import Rows

__all__ = ["decide", "force"]


def decide(
    rows: Rows,
    flags: torch.Tensor,
    count: torch.Tensor,
    zone: torch.Tensor,
    score: torch.Tensor,
    settings: SlotSettings,
    state: DecideState,
    ring: Ring,
) -> Decided:
    """See `reference.decide`."""
    n_rows = len(rows.slot)
    decided = Decided(
        *(
            torch.empty(n_rows, dtype=dtype, device=rows.slot.device)
            for dtype in (torch.uint8, torch.float64, torch.int32, torch.bool)
        )
    )
    if n_rows == 0:
        return decided
    shape = shapes.decide(n_rows)
    _decide[(1,)](
        *(column.contiguous() for column in (*rows, flags, count, zone, score)),
        n_rows,
        settings.words,
        settings.doubles,
        settings.handoff,
        settings.handoff.shape[1],
        state.words,
        state.doubles,
        state.window,
        ring.words,
        ring.doubles,
        ring.head,
        ring.capacity,
        decided.verdict,
        decided.smoothed,
        decided.forced,
        decided.locked.view(torch.uint8),
        BLOCK=shape.block,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=False,
    )
    return decided


def force(logits: torch.Tensor, decided: Decided, rows: Rows, settings: SlotSettings) -> None:
    """See `reference.force`."""
    n_rows, vocabulary = logits.shape
    if n_rows == 0:
        return
    shape = shapes.force(vocabulary, settings.locked.shape[1])
    _force[(-(-vocabulary // shape.block), n_rows)](
        logits,
        decided.forced.contiguous(),
        decided.locked.contiguous().view(torch.uint8),
        rows.slot.contiguous(),
        settings.locked,
        logits.stride(0),
        vocabulary,
        settings.locked.shape[1],
        LOWEST=LOWEST[logits.dtype],
        BLOCK=shape.block,
        BLOCK_LOCKED=shape.locked,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
