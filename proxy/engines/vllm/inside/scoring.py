"""Scores of rows in the running batch: one call a step for all boundaries, one for all streamed tokens.

Knows probes and tensors; no requests and no vLLM. Rows are numbers of rows of logits; where their hidden
states lie is the runner's matter (`TapRows`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch

from desist.data.errors import ProbeError
from desist.kernels.boundary_score import MAX_ROWS, Packed, mlp_score_rows, pack
from desist.kernels.choice import Impl, chosen
from desist.probes.lynx import LynxProbe
from desist.proxy.engines.embedded.artefacts import Scorers

__all__ = ["Scoring", "TapRows", "as_bytes", "layer_of"]

logger = logging.getLogger(__name__)

StreamType = Literal["float32", "bfloat16"]


class TapRows(Protocol):
    """The hidden states of the step that runs."""

    @property
    def at(self) -> torch.Tensor:
        """[rows] the token that each row of logits has read."""

    def tensors(self, layers: Sequence[int]) -> list[torch.Tensor]:
        """Each layer's hidden states [tokens, D], on the device, in the model's type."""

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """Layers side by side, [rows, layers * D], on the device, in the model's type."""


def layer_of(tap: int, n_layers: int) -> int:
    """A tap as an index from the front; `n_layers` is the last one, after the final norm.

    Raises `ProbeError` where the model has no such layer.
    """
    layer = tap + n_layers + 1 if tap < 0 else tap
    if not 0 <= layer <= n_layers:
        raise ProbeError(
            f"tap {tap} does not exist: this model of {n_layers} layers has taps 0 to {n_layers}."
        )
    return layer


def as_bytes(rows: torch.Tensor, kind: StreamType) -> list[bytes]:
    """Each row in native byte order, as `kind`."""
    if kind == "float32":
        return [row.tobytes() for row in rows.float().cpu().numpy()]
    return [row.tobytes() for row in rows.to(torch.bfloat16).view(torch.int16).cpu().numpy()]


class Scoring:
    """The probes of one engine on one model of `n_layers` layers. `impl`: as in `desist.kernels`."""

    def __init__(self, scorers: Scorers, n_layers: int, *, impl: Impl = "auto") -> None:
        self.scorers = scorers
        self._probe, self._rom = scorers.probe, scorers.rom
        self._probe_layers = self._layers(self._probe, n_layers)
        self._rom_layers = self._layers(self._rom, n_layers)
        self._fused = _fused(self._probe, impl)

    @property
    def layers(self) -> frozenset[int]:
        """All layers that are read."""
        return frozenset((*self._probe_layers, *self._rom_layers))

    @property
    def ordered_layers(self) -> tuple[int, ...]:
        """The boundary probe's layers in its order, then the streaming one's that are not among them."""
        return tuple(dict.fromkeys((*self._probe_layers, *self._rom_layers)))

    @property
    def names(self) -> frozenset[str]:
        return self.scorers.names

    @property
    def streams(self) -> bool:
        """Whether every reasoning token is scored."""
        return self._rom is not None

    def boundary_scores(self, taps: TapRows, rows: Sequence[int]) -> list[float]:
        """Scores "probe" of boundary rows. Empty without a boundary probe."""
        if self._probe is None or not rows:
            return []
        if self._fused is None:
            return self.scores_of_rows(self.boundary_rows(taps, rows))
        chosen_rows = torch.tensor(rows, dtype=torch.int32, device=taps.at.device)
        return _in_kernels(self._fused, taps.tensors(self._probe_layers), taps.at, chosen_rows)

    def boundary_rows(self, taps: TapRows, rows: Sequence[int]) -> torch.Tensor:
        """What the boundary probe reads of these rows [rows, layers * D], copied."""
        return taps.read(self._probe_layers, rows)

    def scores_of_rows(self, *parts: torch.Tensor) -> list[float]:
        """Scores "probe" of rows that `boundary_rows` read, in this step or before, part after part."""
        assert self._probe is not None
        read = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._fused is not None:
            each = torch.arange(len(read), dtype=torch.int32, device=read.device)
            return _in_kernels(self._fused, read.chunk(self._fused.taps, dim=1), each, each)
        found: list[float] = self._probe.score(read.float()).tolist()
        return found

    @property
    def in_kernels(self) -> bool:
        """Whether boundaries are scored by the Triton kernels."""
        return self._fused is not None

    @property
    def packed(self) -> Packed | None:
        """The boundary probe as the kernels read it; None where they do not."""
        return self._fused

    @property
    def layers_of_each(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The layers of the boundary probe and those of the streaming one, in their order."""
        return self._probe_layers, self._rom_layers

    @property
    def judges_boundaries(self) -> bool:
        """Whether there is a boundary probe."""
        return self._probe is not None

    def initial_state(self) -> Any:
        """State [H] of the streaming probe before the first reasoning token."""
        assert self._rom is not None
        return self._rom.initial_state(1)[0]

    def stream_scores(
        self, taps: TapRows, rows: Sequence[int], states: Sequence[Any]
    ) -> tuple[list[Any], list[float]]:
        """New states and scores "rom" of reasoning tokens, one state a row."""
        assert self._rom is not None
        fresh, scores = self._rom.step(torch.stack(list(states)), taps.read(self._rom_layers, rows).float())
        return list(fresh), scores.tolist()

    @staticmethod
    def _layers(probe: Any, n_layers: int) -> tuple[int, ...]:
        return () if probe is None else tuple(layer_of(tap, n_layers) for tap in probe.card.taps)


def _fused(probe: Any, impl: Impl) -> Packed | None:
    """The boundary probe for the kernels; None where they do not run, or do not take this probe.

    Its weights stay float32, so that scores are those that the certificate was made with. Probes trained on
    rows rounded to float16 round what they read first, which the kernels do not.
    """
    if not isinstance(probe, LynxProbe) or probe.card.hidden_dtype == "float16":
        return None
    device = probe.layers[0].weight.device
    if chosen(impl, device) == "torch":
        return None
    try:
        return pack(probe.layers, torch.float32, len(probe.card.taps), device)
    except ValueError as error:
        if impl == "triton":
            raise ProbeError(f"kernels: triton, but {error}") from error
        logger.info("desist: the kernels do not take this probe, torch scores it: %s", error)
        return None


def _in_kernels(
    probe: Packed, taps: Sequence[torch.Tensor], at: torch.Tensor, rows: torch.Tensor
) -> list[float]:
    """Scores of the rows numbered `rows` [M] int32, M >= 1; `taps` and `at` as for the kernels."""
    starts = range(0, len(rows), MAX_ROWS)
    parts = [
        mlp_score_rows(taps, at, rows[start : start + MAX_ROWS], probe, impl="triton") for start in starts
    ]
    found: list[float] = torch.cat(parts).tolist()
    return found
