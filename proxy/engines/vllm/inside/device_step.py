"""One step on the device: rows, scores, decisions, forced logits, without a wait for the host.

Which rows are live, and whose, the host knows without asking: the schedule says it. What they have read and
at which position only the device knows, and only the device needs it. Knows batches and slots; nothing of
requests but their slots and probes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from desist.kernels.boundary_score import MAX_ROWS, Automaton
from desist.kernels.decide_and_force import Decided
from desist.kernels.rows import IDLE, Rows
from desist.proxy.engines.vllm.inside.device_probes import DeviceProbes, Kernels
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots
from desist.proxy.engines.vllm.inside.scoring import TapRows

__all__ = ["Decisions", "DeviceStep", "Wanted", "launches", "live"]


class Wanted(NamedTuple):
    """Rows `first` to `end` of a request that the device controls. `rom`: its policy reads that score."""

    slot: int
    first: int
    end: int
    probes: DeviceProbes
    rom: bool


class Decisions(NamedTuple):
    """A step that was decided: per row [R] the slot (or IDLE), position and what must follow.

    `firsts` [slots] on the host: the number of a slot's first row, for callers who see rows in parts.
    """

    slot: torch.Tensor
    position: torch.Tensor
    forced: torch.Tensor
    locked: torch.Tensor
    firsts: npt.NDArray[np.int64]


def live(batch: Any, number: int, prompt_tokens: int) -> int:
    """How many rows of the batch's request `number` have read a token that was generated.

    In its prefill a request has none; in the last part of one after a preemption, the first row alone
    (draft places there are placeholders).
    """
    rows = int(batch.cu_num_logits_np[number + 1] - batch.cu_num_logits_np[number])
    if not batch.is_prefilling_np[number]:
        return rows
    prefill = int(batch.prefill_len_np[number])
    fed = int(batch.num_scheduled_tokens[number])
    if batch.num_draft_tokens_per_req is not None:
        fed -= int(batch.num_draft_tokens_per_req[number])
    complete = int(batch.num_computed_prefill_tokens_np[number]) + fed >= prefill
    return int(complete and prefill > prompt_tokens)


class _OneRow(NamedTuple):
    """Hidden states for a warm-up: one row [1, D], whatever the layer."""

    row: torch.Tensor
    at: torch.Tensor

    def tensors(self, layers: Sequence[int]) -> list[torch.Tensor]:
        return [self.row] * len(layers)

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        return self.row.repeat(len(rows), len(layers))


class DeviceStep:
    """The ops of a step, in order, on the slots' states."""

    def __init__(self, kernels: Kernels, automaton: Automaton, slots: DeviceSlots) -> None:
        self._kernels, self._automaton, self._slots = kernels, automaton, slots

    def rows_of(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and token [R] int32 of all rows of the batch."""
        at = batch.logits_indices
        return batch.positions[at].int(), batch.input_ids[at].int()

    def decide(
        self,
        batch: Any,
        wanted: Sequence[Wanted],
        taps: TapRows,
        position: torch.Tensor,
        token: torch.Tensor,
    ) -> tuple[Decisions, torch.Tensor]:
        """Read, score and decide at the rows that are wanted, at least one; and the columns of all rows.

        Columns [5, R] int32: position, token, last zone token, and the bits of both scores (float32).
        """
        count = int(batch.cu_num_logits_np[-1])
        local = batch.expanded_local_pos.int()
        parts = []
        for probes in dict.fromkeys(each.probes for each in wanted):  # one, save after a reload
            mine = [each for each in wanted if each.probes is probes]
            slot = self._slot_column(mine, count)
            for low, high in launches(batch.cu_num_logits_np):
                rows = Rows(slot[low:high], position[low:high], token[low:high], local[low:high])
                rom = [each for each in mine if each.rom and low <= each.first < high]
                parts.append((low, rows, self._decide(rows, probes, taps, taps.at[low:high], rom, low)))
        slot, forced, locked, zone, probe, rom_score = _joined(parts, count)
        firsts = np.zeros(self._slots.count, np.int64)
        for each in wanted:
            firsts[each.slot] = each.first
        columns = torch.stack((position, token, zone, probe.view(torch.int32), rom_score.view(torch.int32)))
        return Decisions(slot, position, forced, locked, firsts), columns

    def force(self, logits: torch.Tensor, decisions: Decisions, context: Any) -> None:
        """Change `logits` [rows, V] where a token is due. The rows may be a part of the step's rows.

        `context`: vLLM's; a row is found by its slot and its place among the request's rows, and counts only
        where its position is the one that was decided at.
        """
        slot, _, forced, locked, firsts = decisions
        if len(logits) != len(slot):
            there = context.expanded_idx_mapping
            number = self._to_device(firsts)[there] + context.expanded_local_pos
            number = number.clamp(max=len(slot) - 1)
            ours = (slot[number] == there) & (decisions.position[number] == context.pos)
            slot = slot[number].where(ours, IDLE)
            forced, locked = forced[number].where(ours, -1), locked[number] & ours
        nothing = torch.empty(0, device=logits.device)
        rows = Rows(slot, nothing, nothing, nothing)
        settings = self._slots.settings
        self._kernels.force(logits, Decided(nothing, nothing, forced, locked), rows, settings)

    def warm_up(
        self, probes: DeviceProbes, hidden: torch.Tensor, vocabulary: int, counts: Iterable[int]
    ) -> None:
        """Run all ops once on rows that are nobody's, for each of the numbers of rows; nothing is changed.

        `hidden` [1, D]: of the type and device of the model's hidden states.
        """
        logits = torch.zeros(1, vocabulary, device=hidden.device)
        for count in counts:
            nothing = torch.zeros(count, dtype=torch.int32, device=hidden.device)
            rows = Rows(torch.full_like(nothing, IDLE), nothing, nothing, nothing)
            forced, locked, *_ = self._decide(rows, probes, _OneRow(hidden, nothing), nothing, (), 0)
            decided = Decided(nothing, nothing, forced[:1], locked[:1])
            first = Rows(*(column[:1] for column in rows))
            self._kernels.force(logits, decided, first, self._slots.settings)

    def _decide(
        self,
        rows: Rows,
        probes: DeviceProbes,
        taps: TapRows,
        at: torch.Tensor,
        rom_rows: Sequence[Wanted],
        low: int,
    ) -> tuple[torch.Tensor, ...]:
        """`forced`, `locked`, `zone` and both scores of the rows of one launch."""
        slots = self._slots
        found, probe, rom = probes.score(self._kernels, taps, at, rows, self._automaton, slots.read)
        nothing = torch.full(rows.slot.shape, torch.nan, device=rows.slot.device)
        probe, rom = (nothing if each is None else each for each in (probe, rom))
        score = probe
        if rom_rows:
            reads_rom = np.zeros(len(rows.slot), bool)
            for each in rom_rows:
                reads_rom[each.first - low : each.end - low] = True
            score = torch.where(self._to_device(reads_rom), rom, probe)
        decided = self._kernels.decide(
            rows, found.flags, found.count, found.zone, score, slots.settings, slots.decided, slots.ring
        )
        return decided.forced, decided.locked, found.zone, probe, rom

    def _slot_column(self, wanted: Sequence[Wanted], count: int) -> torch.Tensor:
        column = np.full(count, IDLE, np.int32)
        for each in wanted:
            column[each.first : each.end] = each.slot
        return self._to_device(column)

    def _to_device(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._slots.device, non_blocking=True)


def launches(ends: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Rows of a step in parts that one launch takes; those of one request stay together."""
    low = 0
    for number in range(1, len(ends)):
        if number + 1 == len(ends) or ends[number + 1] - low > MAX_ROWS:
            yield low, int(ends[number])
            low = int(ends[number])


def _joined(parts: Sequence[Any], count: int) -> tuple[torch.Tensor, ...]:
    """The slots and results of all launches as if they had been one. Each row is at most one launch's."""
    low, rows, results = parts[0]
    if len(rows.slot) == count and len(parts) == 1:
        return (rows.slot, *results)
    empty = (IDLE, -1, False, -1, torch.nan, torch.nan)
    device = rows.slot.device
    joined = tuple(
        torch.full((count,), value, dtype=part.dtype, device=device)
        for value, part in zip(empty, (rows.slot, *results), strict=True)
    )
    for low, rows, results in parts:
        there = slice(low, low + len(rows.slot))
        for whole, part in zip(joined, (rows.slot, *results), strict=True):
            whole[there] = torch.where(rows.slot == IDLE, whole[there], part)
    return joined
