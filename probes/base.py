"""What a probe is: a card that says what it was made from, and a score in [0, 1], higher = safer to stop.

Knows no training, no files and no policy. Torch appears in annotations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from desist.probes.features import HiddenDtype

if TYPE_CHECKING:
    import torch

__all__ = ["SCHEMA_VERSION", "Family", "Probe", "ProbeCard", "StreamingProbe", "Target"]

Family = Literal["mlp", "logistic", "rom"]
Target = Literal["consistent", "correct"]
SCHEMA_VERSION = "1.0"
_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProbeCard:
    """Where a probe comes from and what it may be applied to.

    `taps` are the hidden states a row holds side by side, each `hidden_size` wide. `hidden_dtype` is the
    precision the rows had in training: a probe rounds live rows to it first, so that live and stored
    hidden states give one score. `problems` holds the problem_id of EVERY problem the probe saw
    (training, early stopping and evaluation): calibration must use none of them. `created` is an ISO date
    handed in by the caller. `uncertified` marks a probe that was loaded by force in spite of a mismatch.
    """

    family: Family
    taps: tuple[int, ...]
    hidden_size: int
    target: Target
    hidden_dtype: HiddenDtype = "float16"
    seed: int = 0
    problems: frozenset[str] = frozenset()
    n_traces: int = 0
    n_boundaries: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    metrics: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str | float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    created: str | None = None
    uncertified: bool = False
    schema_version: str = SCHEMA_VERSION

    @property
    def width(self) -> int:
        """Length of one input row: taps times hidden size."""
        return len(self.taps) * self.hidden_size


@runtime_checkable
class Probe(Protocol):
    """Scores boundaries, each from its own row."""

    @property
    def card(self) -> ProbeCard: ...

    def score(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores [B] of `rows` [B, K*D]."""


@runtime_checkable
class StreamingProbe(Protocol):
    """Scores every token, from its hidden state and a state of fixed size. `hidden` is [B, D]."""

    @property
    def card(self) -> ProbeCard: ...

    def initial_state(self, batch: int) -> torch.Tensor:
        """State [B, H] before the first reasoning token."""

    def step(self, state: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """New state [B, H] and scores [B] after one token."""

    def scan(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores [T] of all tokens `hidden` [T, D] of one trace."""
