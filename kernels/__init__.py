"""Probe kernels: the one public door, whatever implementation runs behind it.

`impl`: "torch" is the specification (`reference`), "auto" takes the best one that this machine has.
Every implementation gives the specification's result within its documented tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from desist.kernels import reference
from desist.kernels.reference import Layer, MinGRUWeights

if TYPE_CHECKING:
    import torch

__all__ = ["Impl", "Layer", "MinGRUWeights", "min_gru_scan", "min_gru_step", "mlp_score"]

Impl = Literal["auto", "torch", "triton"]


def _choose(impl: Impl) -> None:
    if impl == "triton":
        raise NotImplementedError(
            "impl='triton': this version has no Triton kernels. Use impl='auto' or impl='torch'."
        )
    if impl not in ("auto", "torch"):
        raise ValueError(f"impl={impl!r} is unknown. Use 'auto', 'torch' or 'triton'.")


def mlp_score(rows: torch.Tensor, layers: Sequence[Layer], *, impl: Impl = "auto") -> torch.Tensor:
    """Score [B] of `rows` [B, K*D] float32. See `reference.mlp_score`."""
    _choose(impl)
    return reference.mlp_score(rows, layers)


def min_gru_step(
    state: torch.Tensor, x: torch.Tensor, weights: MinGRUWeights, *, impl: Impl = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """New state [B, H] and score [B] for one token `x` [B, D]. See `reference.min_gru_step`."""
    _choose(impl)
    return reference.min_gru_step(state, x, weights)


def min_gru_scan(
    x: torch.Tensor, weights: MinGRUWeights, state: torch.Tensor | None = None, *, impl: Impl = "auto"
) -> torch.Tensor:
    """Scores [T] of a whole sequence `x` [T, D]. See `reference.min_gru_scan`."""
    _choose(impl)
    return reference.min_gru_scan(x, weights, state)
