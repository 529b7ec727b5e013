"""The cue probe: standardise, then an MLP (or a logistic unit), on hidden states of a few taps.

Method of LYNX (Akgul et al. 2025, arXiv 2512.05325), trained on clean labels and split by problem. Several
members trained from different seeds are merged into one wider network that gives the mean of their logits.
Knows weights; no traces, labels or files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desist.data.errors import ProbeError
from desist.kernels import Layer, mlp_score
from desist.probes.base import ProbeCard
from desist.probes.rows import as_input, check_layers, own

__all__ = ["LynxProbe", "merge_members", "network"]


class LynxProbe:
    """A trained cue probe. `layers`: affine layers, standardisation folded into the first.

    `score` keeps float32 whatever it is given, and a row's score does not depend on the rest of the batch.
    """

    def __init__(self, card: ProbeCard, layers: Sequence[Layer]) -> None:
        shapes = [tuple(layer.weight.shape) for layer in layers]
        inputs = [card.width, *(shape[0] for shape in shapes[:-1])]
        if not shapes or [shape[1] for shape in shapes] != inputs or shapes[-1][0] != 1:
            raise ProbeError(
                f"layers of shapes {shapes} do not lead from {card.width} columns to one score. "
                "The weights and the card belong to different probes."
            )
        check_layers(layers)
        self.card = card
        self.layers = tuple(own(layer) for layer in layers)

    def score(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores [B] in [0, 1], higher = safer to stop, of `rows` [B, K*D] (any float type)."""
        return mlp_score(as_input(rows, self.card), self.layers)

    def to(self, device: torch.device | str) -> LynxProbe:
        """The same probe with its weights on `device`."""
        moved = LynxProbe(self.card, self.layers)
        moved.layers = tuple(own(layer, device) for layer in self.layers)
        return moved


def network(width: int, hidden: Sequence[int], dropout: float) -> torch.nn.Sequential:
    """The network in training: `width` -> hidden... -> 1 logit, ReLU and dropout between."""
    parts: list[torch.nn.Module] = []
    for size in hidden:
        parts += [torch.nn.Linear(width, size), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
        width = size
    return torch.nn.Sequential(*parts, torch.nn.Linear(width, 1))


def _block_diagonal(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    joined = blocks[0].new_zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        joined[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return joined


def merge_members(members: Sequence[Sequence[Layer]]) -> tuple[Layer, ...]:
    """One network whose logit is the mean of the members' logits (equal shapes, one common input).

    The first layers are stacked, the middle ones stand on a block diagonal, the last are averaged.
    """
    merged = []
    depth = len(members[0])
    for number, group in enumerate(zip(*members, strict=True)):
        weights = [layer.weight for layer in group]
        biases = torch.cat([layer.bias for layer in group])
        if number == depth - 1:
            biases = biases.mean(dim=0, keepdim=True)
            weights = [weight / len(members) for weight in weights]
            joined = sum(weights[1:], weights[0]) if depth == 1 else torch.cat(weights, dim=1)
        else:
            joined = torch.cat(weights) if number == 0 else _block_diagonal(weights)
        merged.append(Layer(joined, biases))
    return tuple(merged)
