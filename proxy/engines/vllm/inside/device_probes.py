"""The probes of one engine as the kernels read them, and the kernels themselves behind one object.

Knows weights and rows; no requests. After a reload, requests that run keep the probes that they entered
with, so there may be two of these for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from desist.kernels.boundary_score import (
    Automaton,
    BoundaryState,
    Found,
    Packed,
    boundary_score,
    find_boundaries,
)
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import decide, force
from desist.kernels.rows import Rows
from desist.kernels.stream_score import PackedHead, StreamState, pack_head, stream_score
from desist.probes.rom import RomProbe
from desist.proxy.engines.vllm.inside.scoring import Scoring, TapRows

__all__ = ["DeviceProbes", "Kernels", "ScoredRows", "kernels_of"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The ops of a step, as `desist.kernels` has them, with one implementation chosen."""

    find_boundaries: Any
    boundary_score: Any
    stream_score: Any
    decide: Any
    force: Any


def kernels_of(impl: Impl) -> Kernels:
    """All ops in one implementation. "torch" waits for the device, so it is for checks."""
    ops = (find_boundaries, boundary_score, stream_score, decide, force)
    return Kernels(*(partial(op, impl=impl) for op in ops))


class ScoredRows(NamedTuple):
    """What the tokens of R rows meant, and their scores [R] float32; None without that probe."""

    found: Found
    probe: torch.Tensor | None
    rom: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProbes:
    """`packed` reads `probe_layers`, `head` reads `rom_layer` and keeps `stream`."""

    scoring: Scoring
    packed: Packed | None = None
    probe_layers: tuple[int, ...] = ()
    head: PackedHead | None = None
    rom_layer: int | None = None
    stream: StreamState | None = None

    @classmethod
    def of(cls, scoring: Scoring, slots: int, window: int, device: torch.device | str) -> DeviceProbes | None:
        """The probes of `scoring`; None where the kernels do not take all of them.

        The streaming probe's weights stay float32, as the boundary probe's, so that scores are those that
        the certificate was made with; one trained on rows rounded to float16 rounds first, which the kernels
        do not.
        """
        probe_layers, rom_layers = scoring.layers_of_each
        rom = scoring.scorers.rom
        if scoring.judges_boundaries and scoring.packed is None:
            return None
        if rom is None:
            return cls(scoring, scoring.packed, probe_layers)
        if not isinstance(rom, RomProbe) or rom.card.hidden_dtype == "float16" or len(rom_layers) != 1:
            return None
        head = pack_head(rom.weights, torch.float32, device)
        stream = StreamState(slots, window, head.states, device)
        return cls(scoring, scoring.packed, probe_layers, head, rom_layers[0], stream)

    def score(
        self,
        kernels: Kernels,
        taps: TapRows,
        at: torch.Tensor,
        rows: Rows,
        automaton: Automaton,
        state: BoundaryState,
    ) -> ScoredRows:
        """Read the tokens of the rows, and score those at a boundary; with a streaming probe, all."""
        probe = rom = None
        if self.packed is None:
            found = kernels.find_boundaries(rows, automaton, state)
        else:
            hidden = taps.tensors(self.probe_layers)
            *parts, probe = kernels.boundary_score(hidden, at, rows, automaton, state, self.packed)
            found = Found(*parts)
        if self.head is not None and self.rom_layer is not None:
            hidden = taps.tensors([self.rom_layer])
            rom = kernels.stream_score(hidden[0], at, rows, found.flags, self.stream, self.head)
        return ScoredRows(found, probe, rom)
