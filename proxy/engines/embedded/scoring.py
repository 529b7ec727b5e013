"""Scores of the rows of a step: boundaries by one probe, each reasoning token by the other.

Knows probes, taps and which jobs began under other probes; decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch

from desist.data.errors import ProbeError
from desist.probes.base import Probe, StreamingProbe
from desist.proxy.engines.embedded.job import Row
from desist.proxy.engines.embedded.slots import SlotBatch, StepOutput

__all__ = ["RowScores"]


class RowScores:
    """`probe` scores boundaries (score name "probe"), `rom` every reasoning token (score name "rom")."""

    def __init__(self, slots: SlotBatch, probe: Probe | None, rom: StreamingProbe | None) -> None:
        self._slots, self._probe, self._rom = slots, probe, rom
        self._probe_taps, self._rom_taps = self._taps(probe), self._taps(rom)
        self._former: set[Hashable] = set()  # jobs that began under other probes: they get no scores

    @property
    def names(self) -> frozenset[str]:
        """Names of the scores that boundaries get."""
        there = (("probe", self._probe), ("rom", self._rom))
        return frozenset(name for name, each in there if each is not None)

    def use(self, probe: Probe | None, rom: StreamingProbe | None, running: Iterable[Hashable]) -> None:
        """Score with these probes, of taps that are read already. Raises `ProbeError` for other taps.

        The `running` jobs get no scores any more: their thresholds were made for other probes, and without
        evidence nothing is stopped.
        """
        taps = self._taps(probe), self._taps(rom)
        self._former.update(running)
        self._probe, self._rom = probe, rom
        self._probe_taps, self._rom_taps = taps

    def places(self, taps: Iterable[int]) -> tuple[int, ...]:
        """Where the hidden states of these taps stand in a step's output. Raises `ProbeError`."""
        wanted = [self._slots.tap_index(tap) for tap in taps]
        other = sorted(set(wanted) - set(self._slots.taps))
        if other:
            raise ProbeError(
                f"the probe reads the taps {', '.join(map(str, other))}, which this engine does not keep. "
                "Start the engine with that probe."
            )
        return tuple(self._slots.taps.index(tap) for tap in wanted)

    def begin(self, row: Row) -> None:
        """A row starts: nothing of its reasoning has been read."""
        if self._rom is not None:
            row.rom_state = self._rom.initial_state(1)[0]

    def forget(self, key: Hashable) -> None:
        """A job has ended."""
        self._former.discard(key)

    def of(self, rows: Sequence[Row], output: StepOutput) -> dict[int, dict[str, float]]:
        """The scores of the rows at a boundary, by row number."""
        scored = [n for n, row in enumerate(rows) if row.boundary and self._scores(row)]
        scores: dict[int, dict[str, float]] = {number: {} for number in scored}
        if self._probe is not None and scored:
            hidden = torch.cat([output.hidden[place][scored] for place in self._probe_taps], dim=-1)
            for number, score in zip(scored, self._probe.score(hidden.float()).tolist(), strict=True):
                scores[number]["probe"] = score
        self._stream(rows, output, scores)
        return scores

    def _stream(self, rows: Sequence[Row], output: StepOutput, scores: dict[int, dict[str, float]]) -> None:
        if self._rom is None:
            return
        fed = [n for n, row in enumerate(rows) if row.counted and self._scores(row)]
        if not fed:
            return
        states = torch.stack([state for n in fed if (state := rows[n].rom_state) is not None])
        hidden = torch.cat([output.hidden[place][fed] for place in self._rom_taps], dim=-1)
        states, stream = self._rom.step(states, hidden.float())
        for place, (number, score) in enumerate(zip(fed, stream.tolist(), strict=True)):
            rows[number].rom_state = states[place]
            if number in scores:
                scores[number]["rom"] = score

    def _scores(self, row: Row) -> bool:
        return row.control.mode != "off" and row.job.key not in self._former

    def _taps(self, probe: Probe | StreamingProbe | None) -> tuple[int, ...]:
        return () if probe is None else self.places(probe.card.taps)
