"""What a step gives back, row by row, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Found", "Scored"]


class Found(NamedTuple):
    """What the tokens of R rows meant.

    `flags` [R] uint8 (`Flag`; 0 for a row that is nobody's, LOST alone where the slot is not known).
    `count` [R] int32: reasoning tokens up to this one. `zone` [R] int32: position of the last token that may
    have opened or closed a hold-off zone, -1 for none. `compact` [R] int32: numbers of the rows that are to
    be scored, in order, then -1. `n` [1] int32: how many there are.
    """

    flags: torch.Tensor
    count: torch.Tensor  # type: ignore[assignment] # hides a tuple's count(), which nothing here wants
    zone: torch.Tensor
    compact: torch.Tensor
    n: torch.Tensor


class Scored(NamedTuple):
    """`Found`, and `score` [R] float32: NaN where the row is no boundary."""

    flags: torch.Tensor
    count: torch.Tensor  # type: ignore[assignment] # hides a tuple's count(), which nothing here wants
    zone: torch.Tensor
    compact: torch.Tensor
    n: torch.Tensor
    score: torch.Tensor
