"""Where the hidden states of a step lie: tokens of the whole batch, and which of them rows of logits read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["StepTaps"]


@dataclass(frozen=True, slots=True)
class StepTaps:
    """The hidden states of one step; implements `scoring.TapRows`.

    `last` [tokens, D] is after the final norm (layer `n_layers`), `inner[k]` [tokens, D] the output before
    layer `inner_layers[k]`, `places` [rows] the token that each row of logits has read: an array where the
    host knows it.
    """

    last: torch.Tensor
    inner: Sequence[torch.Tensor]
    inner_layers: Sequence[int]
    n_layers: int
    places: torch.Tensor | NDArray[np.int32]

    @property
    def at(self) -> torch.Tensor:
        """[rows] the token that each row of logits has read, on the device."""
        if isinstance(self.places, torch.Tensor):
            return self.places
        return torch.from_numpy(self.places).to(self.last.device)

    def tensors(self, layers: Sequence[int]) -> list[torch.Tensor]:
        """Each layer's hidden states [tokens, D], as they lie; row r of logits has read `at[r]`."""
        return [
            self.last if layer == self.n_layers else self.inner[self.inner_layers.index(layer)]
            for layer in layers
        ]

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """Layers side by side, [rows, layers * D], on the device, in the model's type."""
        tensors = self.tensors(layers)
        if len(rows) == 1 and not isinstance(self.places, torch.Tensor):  # views cost less than a gather
            place = int(self.places[rows[0]])
            return torch.cat([tensor[place] for tensor in tensors])[None]
        at = self.at[torch.tensor(rows, device=self.last.device)]
        parts = [tensor[at] for tensor in tensors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
