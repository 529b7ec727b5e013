"""The rows of one step: one for each token that has just been read and whose logits are wanted.

Shared by all kernels. Everything per request is kept by slot, and within a slot by position, so that a step
never has to be told which drafts of the step before were refused: it starts from the entry just before its
first row, and overwrites what lies beyond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["IDLE", "Rows", "window_for"]

#: The slot of a row that is nobody's: a prefill, a request without control.
IDLE = -1


class Rows(NamedTuple):
    """Rows [R] of a step, all int32 on the device. Rows of one request stand together, in order.

    `slot`: the request's slot, or `IDLE`. `position`: of the token that the row has read, in the sequence.
    `token`: that token. `local`: how many rows of the same request stand before this one in the step (0
    without drafts, so the first row of the request is at r - local[r]).
    """

    slot: torch.Tensor
    position: torch.Tensor
    token: torch.Tensor
    local: torch.Tensor


def window_for(drafts: int) -> int:
    """Entries that a slot keeps: one for each row of a step of `drafts` drafts, and the one before it."""
    return drafts + 2
