"""What every probe does to its input first: check the width, and round to the precision of training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from desist.data.errors import ProbeError
from desist.kernels import Layer
from desist.probes.base import ProbeCard

__all__ = ["as_input", "check_layers", "fold_standardisation", "own"]


def as_input(rows: torch.Tensor, card: ProbeCard) -> torch.Tensor:
    """`rows` [B, width] as float32, through the precision that the training rows had."""
    if rows.ndim != 2 or rows.shape[1] != card.width:
        raise ProbeError(
            f"rows of shape {tuple(rows.shape)}: the probe reads [B, {card.width}] = taps {card.taps} "
            f"of width {card.hidden_size}. Give it the taps of its card, in that order."
        )
    if card.hidden_dtype == "float16":
        rows = rows.to(torch.float16)
    return rows.to(torch.float32)


def own(layer: Layer, device: torch.device | str | None = None) -> Layer:
    """A float32 copy of a layer that shares memory with nothing (aligned, contiguous, no gradient)."""
    weight, bias = (
        part.detach().to(device=device, dtype=torch.float32, copy=True).contiguous() for part in layer
    )
    return Layer(weight, bias)


def check_layers(layers: Iterable[Layer]) -> None:
    """Refuse weights that are not finite."""
    for number, layer in enumerate(layers):
        if not all(bool(torch.isfinite(part).all()) for part in layer):
            raise ProbeError(
                f"layer {number} of the probe holds NaN or infinite weights. Train the probe again; "
                "if it was loaded from disk, the file is damaged."
            )


def fold_standardisation(layer: Layer, mean: torch.Tensor, scale: torch.Tensor) -> Layer:
    """The layer that reads raw rows and does what `layer` does to (row - mean) / scale.

    Columns whose `scale` is 0 (constant in training) are ignored. Computed in float64.
    """
    factor = torch.where(scale > 0, 1.0 / scale.clamp_min(1e-30), torch.zeros_like(scale)).double()
    weight = layer.weight.double() * factor
    return Layer(weight.float(), (layer.bias.double() - weight @ mean.double()).float())
