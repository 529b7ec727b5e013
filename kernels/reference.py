"""The specification of the probe kernels: plain torch, float32, one obvious formula each.

Knows tensors and weights only; no probe cards, traces or policies. Faster implementations are compared
with this one. Rows are worked off in blocks of one fixed shape on the CPU, because a matrix product may
round differently for different batch sizes: with blocks a row's score does not depend on how many
neighbours it has, so that a score computed live and the same score computed in a replay are one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import linear, pad

__all__ = ["BLOCK_ROWS", "Layer", "MinGRUWeights", "min_gru_scan", "min_gru_step", "mlp_score"]

BLOCK_ROWS = 16
_LANES = 16


class Layer(NamedTuple):
    """One affine layer: `weight` [out, in], `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor


class MinGRUWeights(NamedTuple):
    """Weights of the streaming head. D hidden size, P width of the input projection, H state width.

    `inp` [P, D], `gate` and `candidate` [H, P], `head` [1, H + P] over the state and the projection.
    """

    inp: Layer
    gate: Layer
    candidate: Layer
    head: Layer


def _in_blocks(
    rowwise: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Apply a row-wise function to `inputs` [B, ...] in zero-padded blocks of BLOCK_ROWS rows."""
    count = inputs[0].shape[0]
    if inputs[0].is_cuda:
        return rowwise(*inputs)
    blocks = []
    for start in range(0, max(count, 1), BLOCK_ROWS):
        padded = []
        for rows in inputs:
            part = rows[start : start + BLOCK_ROWS]
            block = part.new_zeros((BLOCK_ROWS, *part.shape[1:]))
            block[: part.shape[0]] = part
            padded.append(block)
        blocks.append(rowwise(*padded))
    return tuple(torch.cat(parts)[:count] for parts in zip(*blocks, strict=True))


def _affine(block: torch.Tensor, layer: Layer) -> torch.Tensor:
    """`block` [B, in] -> [B, out]. Rows are padded to whole vector lanes: a product of rows that start
    at odd addresses rounds by where in the block a row stands."""
    weight, bias = layer
    spare = -block.shape[1] % _LANES
    if spare:
        block, weight = pad(block, (0, spare)), pad(weight, (0, spare))
    return linear(block, weight, bias)


@torch.no_grad()
def mlp_score(rows: torch.Tensor, layers: Sequence[Layer]) -> torch.Tensor:
    """Score [B] in [0, 1] of `rows` [B, K*D] float32: ReLU between the layers, logistic at the end.

    Standardisation is already folded into the first layer. A row that holds NaN scores NaN, which no
    threshold lets pass.
    """

    def rowwise(block: torch.Tensor) -> tuple[torch.Tensor]:
        for layer in layers[:-1]:
            block = _affine(block, layer).relu()
        return (_affine(block, layers[-1]).squeeze(-1).sigmoid(),)

    return _in_blocks(rowwise, rows)[0]


def _gates(x: torch.Tensor, weights: MinGRUWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Projection [B, P], update gate [B, H] and candidate [B, H] of `x` [B, D]; none reads the state."""

    def rowwise(block: torch.Tensor) -> tuple[torch.Tensor, ...]:
        projected = _affine(block, weights.inp).relu()
        gate = _affine(projected, weights.gate).sigmoid()
        return projected, gate, _affine(projected, weights.candidate)

    projected, gate, candidate = _in_blocks(rowwise, x)
    return projected, gate, candidate


def _head(state: torch.Tensor, projected: torch.Tensor, weights: MinGRUWeights) -> torch.Tensor:
    """Score [B] of `state` [B, H] and `projected` [B, P]."""

    def rowwise(state: torch.Tensor, projected: torch.Tensor) -> tuple[torch.Tensor]:
        return (_affine(torch.cat((state, projected), dim=-1), weights.head).squeeze(-1).sigmoid(),)

    return _in_blocks(rowwise, state, projected)[0]


@torch.no_grad()
def min_gru_step(
    state: torch.Tensor, x: torch.Tensor, weights: MinGRUWeights
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: `state` [B, H] and hidden states `x` [B, D] float32 -> new state [B, H], score [B].

    min-GRU (Feng et al. 2024, "Were RNNs All We Needed?", section 3.1): the gate z and the candidate c
    depend on the input only, h' = (1 - z) h + z c, written here as h + z (c - h).
    """
    projected, gate, candidate = _gates(x, weights)
    state = state + gate * (candidate - state)
    return state, _head(state, projected, weights)


@torch.no_grad()
def min_gru_scan(x: torch.Tensor, weights: MinGRUWeights, state: torch.Tensor | None = None) -> torch.Tensor:
    """Scores [T] of the token sequence `x` [T, D] float32, starting at `state` [H] (default zeros).

    Equal, bit for bit on the CPU, to T calls of `min_gru_step`.
    """
    projected, gate, candidate = _gates(x, weights)
    current = gate.new_zeros(gate.shape[-1]) if state is None else state
    states = torch.empty_like(gate)
    for t in range(x.shape[0]):
        current = current + gate[t] * (candidate[t] - current)
        states[t] = current
    return _head(states, projected, weights)
