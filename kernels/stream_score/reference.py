"""The specification of `stream_score`: plain torch, float32, by the formula of `min_gru_step`.

Knows rows, flags, the state by position and the weights. It waits for the device: where that matters, the
kernels run.
"""

from __future__ import annotations

import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.reference import min_gru_step
from desist.kernels.rows import Rows
from desist.kernels.stream_score.head import PackedHead
from desist.kernels.stream_score.state import StreamState

__all__ = ["stream_score"]


@torch.no_grad()
def stream_score(
    hidden: torch.Tensor,
    at: torch.Tensor,
    rows: Rows,
    flags: torch.Tensor,
    state: StreamState,
    head: PackedHead,
) -> torch.Tensor:
    """Score [R] of the rows that count; see the door of this package. Updates `state`.

    First the first row of every request, then the second of every request, and so on: each goes on from the
    entry of the position before its own.
    """
    weights = head.rounded()
    score = torch.full(at.shape, torch.nan, device=at.device)
    for place in range(state.window - 1):
        row = torch.nonzero((rows.slot >= 0) & (rows.local == place))[:, 0]
        slot, position = rows.slot[row].long(), rows.position[row].long()
        known, h = state.read(slot, position - 1)
        known &= (flags[row] & Flag.LOST) == 0
        reads = known & ((flags[row] & Flag.COUNTED) != 0)
        h[reads], score[row[reads]] = min_gru_step(h[reads], hidden[at[row[reads]].long()].float(), weights)
        state.write(slot, position, known, h)
    return score
