"""The streaming probe: a causal min-GRU head on one late tap, at every reasoning token.

After ROM (arXiv 2603.22016), with two changes that make it streamable: the recurrence is a min-GRU, so
that the state has a fixed size and nothing depends on the length still to come, and the standardisation is
folded into the input projection. Knows weights; no traces, labels or files.
"""

from __future__ import annotations

import torch

from desist.data.errors import ProbeError
from desist.kernels import Layer, MinGRUWeights, min_gru_scan, min_gru_step
from desist.probes.base import ProbeCard
from desist.probes.rows import as_input, check_layers, own

__all__ = ["MinGRUNetwork", "RomProbe"]


class RomProbe:
    """A trained streaming head. B traces side by side, state [B, H], hidden states [B, D]."""

    def __init__(self, card: ProbeCard, weights: MinGRUWeights) -> None:
        projected, width = weights.inp.weight.shape
        states = weights.gate.weight.shape[0]
        fits = (
            width == card.width
            and weights.gate.weight.shape == weights.candidate.weight.shape == (states, projected)
            and weights.head.weight.shape == (1, states + projected)
        )
        if not fits:
            raise ProbeError(
                f"weights for width {width}, card for {card.width} columns: they belong to different probes."
            )
        check_layers(weights)
        self.card = card
        self.weights = MinGRUWeights(*(own(layer) for layer in weights))

    @property
    def state_size(self) -> int:
        """Width H of the state."""
        return int(self.weights.gate.weight.shape[0])

    def initial_state(self, batch: int) -> torch.Tensor:
        """State [B, H] before the first reasoning token: zeros."""
        return self.weights.gate.weight.new_zeros((batch, self.state_size))

    def step(self, state: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """New state [B, H] and scores [B] in [0, 1] after one token with hidden states `hidden` [B, D]."""
        return min_gru_step(state, as_input(hidden, self.card), self.weights)

    def scan(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores [T] of one trace's tokens `hidden` [T, D]; equals the loop over `step`."""
        return min_gru_scan(as_input(hidden, self.card), self.weights)

    def to(self, device: torch.device | str) -> RomProbe:
        """The same probe with its weights on `device`."""
        moved = RomProbe(self.card, self.weights)
        moved.weights = MinGRUWeights(*(own(layer, device) for layer in self.weights))
        return moved


class MinGRUNetwork(torch.nn.Module):
    """The head in training: logits [B, T] of padded sequences [B, T, D], already standardised."""

    def __init__(self, width: int, projection: int, states: int, dropout: float) -> None:
        super().__init__()
        self.inp = torch.nn.Linear(width, projection)
        self.gate = torch.nn.Linear(projection, states)
        self.candidate = torch.nn.Linear(projection, states)
        self.head = torch.nn.Linear(states + projection, 1)
        self.dropout = torch.nn.Dropout(dropout)
        torch.nn.init.constant_(self.gate.bias, -2.0)  # start with a long memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.dropout(self.inp(x).relu())
        gates, candidates = self.gate(projected).sigmoid(), self.candidate(projected)
        state = x.new_zeros((x.shape[0], gates.shape[-1]))
        states = []
        for gate, candidate in zip(gates.unbind(1), candidates.unbind(1), strict=True):
            state = torch.lerp(state, candidate, gate)
            states.append(state)
        logits: torch.Tensor = self.head(torch.cat((torch.stack(states, 1), projected), -1)).squeeze(-1)
        return logits

    def weights(self) -> MinGRUWeights:
        """A copy of the weights, standardisation not yet folded."""
        parts = (self.inp, self.gate, self.candidate, self.head)
        return MinGRUWeights(*(own(Layer(part.weight, part.bias)) for part in parts))
