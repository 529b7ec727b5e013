"""The probe's weights as the kernels read them: prepared once, when a probe is loaded.

Only the first layer is rounded to the asked type: it is read whole at each step, and is hundreds of times
larger than the others, which stay float32 with all biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from desist.kernels.reference import Layer

__all__ = ["MAX_TAPS", "PADDING", "Packed", "pack"]

MAX_TAPS = 8
PADDING = 16
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDEST = (1024, 256, 1)  # outputs of the first, second and third layer


class Packed(NamedTuple):
    """One to three layers, on one device, contiguous. `taps` hidden states of width `hidden` make a row.

    `layers[0].weight` [N1, taps * hidden] has the asked type, everything else is float32. `bias1` [P1] and
    `weight2` [N2, P1] are the first layer's bias and the second's weights once more, with zeros up to a
    multiple of 16: of unpadded rows each number would be loaded on its own.
    """

    layers: tuple[Layer, ...]
    taps: int
    hidden: int
    bias1: torch.Tensor
    weight2: torch.Tensor


def pack(
    layers: Sequence[Layer],
    dtype: torch.dtype = torch.bfloat16,
    n_taps: int = 1,
    device: torch.device | str = "cpu",
) -> Packed:
    """`layers` for `n_taps` taps, the first one rounded to `dtype`.

    Raises `ValueError` for a shape or type that the kernels do not take, with what they do take.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"weights in {dtype} are not supported. Use bfloat16, float16 or float32.")
    if not 1 <= n_taps <= MAX_TAPS:
        raise ValueError(f"{n_taps} taps are not supported. Use 1 to {MAX_TAPS}.")
    if not 1 <= len(layers) <= len(_WIDEST):
        raise ValueError(f"{len(layers)} layers are not supported. Use 1 to {len(_WIDEST)}.")
    _check_widths(layers, n_taps)
    packed = tuple(
        Layer(
            layer.weight.detach().to(device, torch.float32 if number else dtype).contiguous(),
            layer.bias.detach().to(device, torch.float32).contiguous(),
        )
        for number, layer in enumerate(layers)
    )
    width1 = len(layers[0].bias)
    bias1 = pad(packed[0].bias, (0, -width1 % PADDING))
    # Without a second layer nothing looks at its weights.
    weight2 = pad(packed[1].weight, (0, -width1 % PADDING)) if len(packed) > 1 else bias1
    return Packed(packed, n_taps, layers[0].weight.shape[1] // n_taps, bias1, weight2)


def _check_widths(layers: Sequence[Layer], n_taps: int) -> None:
    width = layers[0].weight.shape[1]
    if width % n_taps or not width:
        raise ValueError(
            f"{width} inputs do not divide by {n_taps} taps. Give the probe's own number of taps."
        )
    for number, layer in enumerate(layers):
        out, inp = layer.weight.shape
        widest = 1 if number == len(layers) - 1 else _WIDEST[number]
        if inp != width or layer.bias.shape != (out,) or not 1 <= out <= widest:
            raise ValueError(
                f"layer {number + 1} has weights [{out}, {inp}] and {layer.bias.numel()} biases: it must "
                f"take {width} inputs and give 1 to {widest} outputs, with a bias each."
            )
        width = out
