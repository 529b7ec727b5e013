"""`stream_score`: the streaming head at every reasoning token of a step, whatever implementation runs it."""

from __future__ import annotations

import torch

from desist.kernels.choice import Impl, chosen
from desist.kernels.rows import Rows
from desist.kernels.stream_score import reference
from desist.kernels.stream_score.head import PackedHead, pack_head
from desist.kernels.stream_score.state import StreamState

__all__ = ["PackedHead", "StreamState", "pack_head", "stream_score"]


def stream_score(
    hidden: torch.Tensor,
    at: torch.Tensor,
    rows: Rows,
    flags: torch.Tensor,
    state: StreamState,
    head: PackedHead,
    *,
    impl: Impl = "auto",
) -> torch.Tensor:
    """Score [R] float32 in [0, 1] of every row whose `flags` [R] uint8 say COUNTED; NaN at all others.

    `hidden` [T, D] holds the step's hidden states in their own type and strides, and row r reads
    `hidden[at[r]]`. A row that does not count carries the state over; a row whose state is not known, or that
    is LOST, scores NaN and leaves its position unknown, until the slot is entered again. `state` is updated.
    """
    if hidden.shape[-1] != head.width or state.h.shape[-1] != head.states:
        raise ValueError(
            f"hidden states of width {hidden.shape[-1]} and a state of {state.h.shape[-1]}, but the head "
            f"reads {head.width} and keeps {head.states}. Make the state and the tap for this head."
        )
    if chosen(impl, hidden.device) == "torch":
        return reference.stream_score(hidden, at, rows, flags, state, head)
    from desist.kernels.stream_score.launch import launch

    return launch(hidden, at, rows, flags, state, head)
