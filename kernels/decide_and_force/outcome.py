"""What a step gives back, row by row, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Decided"]


class Decided(NamedTuple):
    """What was decided at R rows.

    `verdict` [R] uint8 (`Verdict`). `smoothed` [R] float64: the smoothed score after the row, NaN for none.
    `forced` [R] int32: what the token after the row must be, -1 for free. `locked` [R] bool: the slot's
    locked ids must not be sampled after the row.
    """

    verdict: torch.Tensor
    smoothed: torch.Tensor
    forced: torch.Tensor
    locked: torch.Tensor
