"""The specification: rows walked one by one, and the MLP of the rows that are boundaries, in float32.

Waits for the device (it reads the rows on the host), so it is for checks and for machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from desist.kernels.boundary_score.automaton import Automaton
from desist.kernels.boundary_score.flags import Flag
from desist.kernels.boundary_score.outcome import Found, Scored
from desist.kernels.boundary_score.packed import Packed
from desist.kernels.boundary_score.state import BoundaryState
from desist.kernels.reference import Layer, mlp_score
from desist.kernels.rows import IDLE, Rows

__all__ = ["boundary_score", "find_boundaries", "mlp_score_rows"]

_CUTTABLE = Flag.THINKING | Flag.COUNTED | Flag.WHOLE
_SCORED = Flag.BOUNDARY | Flag.THINKING


class _Entry(NamedTuple):
    """What is known after a token: `BoundaryState` without its tag."""

    automaton: int
    counted: int
    periods: int
    zone: int


def find_boundaries(rows: Rows, automaton: Automaton, state: BoundaryState) -> Found:
    """Read the token of each row; `state` gets one entry for each row."""
    flags, counts, zones = [], [], []
    entry: _Entry | None = None
    for slot, position, token, local in zip(*(column.tolist() for column in rows), strict=True):
        if slot == IDLE:
            flags.append(0)
            counts.append(0)
            zones.append(-1)
            continue
        if local == 0:
            entry = _kept(state, slot, position - 1)
        # More rows than the window is deep would write over the entry that the first one starts from.
        beyond = local >= state.window - 1 or position <= local
        bits, entry = (Flag.LOST, None) if beyond else _read(entry, position, token, automaton)
        if not beyond:
            _keep(state, slot, position, entry)
        flags.append(int(bits))
        counts.append(entry.counted if entry else 0)
        zones.append(entry.zone if entry else -1)
    wanted = [number for number, bits in enumerate(flags) if bits & _SCORED == _SCORED]
    device = rows.slot.device
    return Found(
        torch.tensor(flags, dtype=torch.uint8, device=device),
        torch.tensor(counts, dtype=torch.int32, device=device),
        torch.tensor(zones, dtype=torch.int32, device=device),
        torch.tensor(wanted + [-1] * (len(flags) - len(wanted)), dtype=torch.int32, device=device),
        torch.tensor([len(wanted)], dtype=torch.int32, device=device),
    )


def _read(
    entry: _Entry | None, position: int, token: int, automaton: Automaton
) -> tuple[Flag, _Entry | None]:
    """What the token at `position` means after `entry`, and the entry after it; LOST without an entry."""
    if entry is None or not 0 <= token < len(automaton.token_class):
        return Flag.LOST, None
    kind = int(automaton.token_class[token])
    bits = Flag(int(automaton.flags[entry.automaton, kind]))
    count = entry.counted + (Flag.COUNTED in bits)
    periods = entry.periods
    if automaton.every_n and _CUTTABLE in bits:
        periods = count // automaton.every_n
        if periods > entry.periods:
            bits |= Flag.BOUNDARY
    zone = position if Flag.ZONE in bits else entry.zone
    return bits, _Entry(int(automaton.next[entry.automaton, kind]), count, periods, zone)


def _kept(state: BoundaryState, slot: int, position: int) -> _Entry | None:
    at = slot, position % state.window
    if position < 0 or int(state.position[at]) != position:
        return None
    return _Entry(*(int(value[at]) for value in (state.automaton, state.count, state.periods, state.zone)))


def _keep(state: BoundaryState, slot: int, position: int, entry: _Entry | None) -> None:
    """Write the entry of `position`; without one, see that no older one is taken for it."""
    at = slot, position % state.window
    state.position[at] = -1 if entry is None else position
    if entry is not None:
        state.automaton[at], state.count[at], state.periods[at], state.zone[at] = entry


def mlp_score_rows(
    taps: Sequence[torch.Tensor], at: torch.Tensor, chosen_rows: torch.Tensor, probe: Packed
) -> torch.Tensor:
    """Score [M] float32 of the rows `chosen_rows` [M]; NaN for a row number of -1."""
    score = torch.full((len(chosen_rows),), torch.nan, device=at.device)
    there = chosen_rows >= 0
    where = at[chosen_rows[there].long()].long()
    row = torch.cat([tap[where].float() for tap in taps], dim=1)
    layers = [Layer(layer.weight.float(), layer.bias) for layer in probe.layers]
    score[there] = mlp_score(row, layers)
    return score


def boundary_score(
    taps: Sequence[torch.Tensor],
    at: torch.Tensor,
    rows: Rows,
    automaton: Automaton,
    state: BoundaryState,
    probe: Packed,
) -> Scored:
    """Find the boundaries, then score them."""
    found = find_boundaries(rows, automaton, state)
    score = torch.full(rows.slot.shape, torch.nan, device=at.device)
    chosen = found.compact[: int(found.n)].long()
    score[chosen] = mlp_score_rows(taps, at, chosen, probe)
    return Scored(*found, score)
