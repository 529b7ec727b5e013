"""The weights of the streaming head as the kernels read them.

Knows weights and their types. No rows and no state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from desist.kernels.reference import Layer, MinGRUWeights

__all__ = ["PackedHead", "pack_head"]

_TYPES = (torch.bfloat16, torch.float16, torch.float32)


class PackedHead(NamedTuple):
    """D hidden size, P width of the projection, H width of the state. Matrices have the type they were
    packed in; biases and the output head, a few kilobytes, stay float32.

    `inp` [P, D], `inp_bias` [P]; `gates` [2, H, P], `gates_bias` [2, H]: the update gate, then the candidate;
    `out` [H + P] over the state, then the projection; `out_bias` [1].
    """

    inp: torch.Tensor
    inp_bias: torch.Tensor
    gates: torch.Tensor
    gates_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor

    @property
    def width(self) -> int:
        """Hidden size D."""
        return self.inp.shape[1]

    @property
    def projection(self) -> int:
        """Width P of the projection."""
        return self.inp.shape[0]

    @property
    def states(self) -> int:
        """Width H of the state."""
        return self.gates.shape[1]

    def rounded(self) -> MinGRUWeights:
        """The same weights in float32, rounded as they were packed: what the specification computes with."""
        gate, candidate = self.gates.float()
        return MinGRUWeights(
            Layer(self.inp.float(), self.inp_bias),
            Layer(gate, self.gates_bias[0]),
            Layer(candidate, self.gates_bias[1]),
            Layer(self.out[None], self.out_bias),
        )


def pack_head(weights: MinGRUWeights, dtype: torch.dtype, device: torch.device | str) -> PackedHead:
    """Pack `weights` once, with matrices of type `dtype`.

    Choose the type of the hidden states: only then do tensor cores multiply both as they are. Raises
    `ValueError` for another type than bfloat16, float16 or float32.
    """
    if dtype not in _TYPES:
        raise ValueError(f"dtype={dtype}: a head is packed in bfloat16, float16 or float32.")

    def matrix(*layers: Layer) -> torch.Tensor:
        return torch.stack([layer.weight.detach() for layer in layers]).to(device, dtype).contiguous()

    def vector(*parts: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.detach() for part in parts]).to(device, torch.float32).contiguous()

    inp, gate, candidate, head = weights
    return PackedHead(
        matrix(inp)[0],
        vector(inp.bias)[0],
        matrix(gate, candidate),
        vector(gate.bias, candidate.bias),
        vector(head.weight)[0, 0],
        vector(head.bias)[0],
    )
