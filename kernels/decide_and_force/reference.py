"""The specification: the stop machine walked row by row in Python's own numbers, which are float64.

The rules and their order are those of the stop machine that runs on the host; what it keeps in lists, this
keeps by position. Waits for the device, so it is for checks and for machines without a GPU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.decide_and_force.outcome import Decided
from desist.kernels.decide_and_force.ring import Record, Ring
from desist.kernels.decide_and_force.settings import EMA, LAM, MODES, Line, SlotSettings
from desist.kernels.decide_and_force.state import DecideState, Entry
from desist.kernels.decide_and_force.verdict import RULES, Verdict
from desist.kernels.rows import IDLE, Rows

__all__ = ["GRACE", "LOWEST", "decide", "force"]

#: Tokens for which a stop that was asked for waits in a hold-off zone.
GRACE = 64
#: At most this are the logits of locked ids, by their type (rounded to it, or its lowest finite value): not
#: minus infinity, lest a row with nothing else become NaN.
LOWEST = {
    dtype: float(torch.tensor(max(-1.0e30, torch.finfo(dtype).min), dtype=dtype))
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
}

_GO_ON = Verdict(0)
_FREE = -1


class _Row(NamedTuple):
    """What is known of one token. `score` NaN: no evidence."""

    position: int
    token: int
    flags: Flag
    count: int  # type: ignore[assignment]
    zone: int
    score: float


class _Control(NamedTuple):
    """A slot's settings, read from its line."""

    lam: float
    ema: float
    patience: int
    warmup: int
    soft: int
    hard: int
    mode: str
    asked_at: int
    hold: bool
    known: int
    handoff: list[int]

    @classmethod
    def of(cls, settings: SlotSettings, slot: int) -> _Control:
        line, doubles = settings.words[slot].tolist(), settings.doubles[slot].tolist()
        return cls(  # type: ignore[call-arg]
            doubles[LAM],
            doubles[EMA],
            *line[Line.PATIENCE : Line.MODE],
            MODES[line[Line.MODE]],
            line[Line.ASKED_AT],
            bool(line[Line.HOLD]),
            line[Line.KNOWN],
            settings.handoff[slot, : line[Line.HANDOFF_LENGTH]].tolist(),
        )

    def held(self, row: _Row) -> bool:
        """Whether a hold-off zone may be open: it was, or a later token may have opened one."""
        return self.hold or row.zone > self.known

    def asked(self, row: _Row) -> bool:
        """Whether a stop that was asked for is due."""
        return self.asked_at >= 0 and not (self.held(row) and row.count < self.asked_at + GRACE)


def decide(
    rows: Rows,
    flags: torch.Tensor,
    count: torch.Tensor,
    zone: torch.Tensor,
    score: torch.Tensor,
    settings: SlotSettings,
    state: DecideState,
    ring: Ring,
) -> Decided:
    """Decide at each row; `state` gets an entry for each, `ring` a record where there is news."""
    columns = zip(*(column.tolist() for column in (*rows, flags, count, zone, score)), strict=True)
    verdicts, smoothed, forced, locked, records = [], [], [], [], []
    entry: Entry | None = None
    for slot, position, token, local, bits, n, zone_at, found in columns:
        verdict, control = _GO_ON, None
        if slot == IDLE:
            entry = None
        else:
            row = _Row(position, token, Flag(bits), n, zone_at, found)
            control = _Control.of(settings, slot)
            if local == 0:
                entry = state.kept(slot, position - 1)
            # More rows than the window is deep would write over the entry that the first one starts from.
            beyond = local >= state.window - 1 or position <= local
            verdict, entry = (Verdict.LOST, None) if beyond else _read(row, entry, control)
            if not beyond:
                state.keep(slot, position, entry)
            if _to_be_told(verdict, row.flags, local):
                kept = math.nan if entry is None else entry.smoothed
                records.append(Record(slot, position, n, verdict, found, kept))
        must, locks = _after(position, entry, control)
        verdicts.append(int(verdict))
        smoothed.append(math.nan if entry is None else entry.smoothed)
        forced.append(must)
        locked.append(locks)
    ring.append(records)
    device = rows.slot.device
    return Decided(
        torch.tensor(verdicts, dtype=torch.uint8, device=device),
        torch.tensor(smoothed, dtype=torch.float64, device=device),
        torch.tensor(forced, dtype=torch.int32, device=device),
        torch.tensor(locked, dtype=torch.bool, device=device),
    )


def _read(row: _Row, entry: Entry | None, control: _Control) -> tuple[Verdict, Entry | None]:
    """The verdict at a row, and the entry after it; LOST without an entry."""
    if entry is None or Flag.LOST in row.flags:
        return Verdict.LOST, None
    before = _GO_ON
    if entry.stop >= 0:
        place = row.position - entry.stop - 1
        if place >= len(control.handoff) or row.token == control.handoff[place]:
            return Verdict.STOPPED | Verdict(entry.rule), entry
        before, entry = Verdict.WITHDRAWN, entry._replace(stop=-1, rule=0, waiting=True)
    if Flag.THINKING not in row.flags:
        return before, entry
    verdict, entry = (_at_boundary if Flag.BOUNDARY in row.flags else _advance)(row, entry, control)
    if Verdict.STOP in verdict:
        entry = entry._replace(stop=row.position, rule=int(verdict & RULES))
    return before | verdict, entry


def _at_boundary(row: _Row, entry: Entry, control: _Control) -> tuple[Verdict, Entry]:
    """Asked for before budget before score. Without a score the boundary is passed over."""
    smoothed, streak, ready = entry.smoothed, entry.streak, False
    if not math.isnan(row.score):
        first = math.isnan(smoothed)
        smoothed = row.score if first else control.ema * row.score + (1.0 - control.ema) * smoothed
        above = smoothed > control.lam and row.count >= control.warmup
        streak = streak + 1 if above else 0
        ready = streak >= control.patience and control.mode != "off"
    entry = entry._replace(smoothed=smoothed, streak=streak, waiting=False)
    held = control.held(row)
    if control.asked(row):
        return Verdict.STOP | Verdict.ASKED, entry
    if row.count >= control.soft:
        holds = held and row.count < control.hard
        return (Verdict.HOLD if holds else Verdict.STOP) | Verdict.BUDGET, entry
    if not ready:
        return _GO_ON, entry
    if held:
        return Verdict.HOLD | Verdict.SCORE, entry
    return (Verdict.STOP if control.mode == "active" else _GO_ON) | Verdict.SCORE, entry


def _advance(row: _Row, entry: Entry, control: _Control) -> tuple[Verdict, Entry]:
    """Between boundaries: asked for before hard budget, but neither inside a character nor after a stop that
    was taken back."""
    if Flag.WHOLE in row.flags and not entry.waiting:
        if control.asked(row):
            return Verdict.STOP | Verdict.ASKED, entry
        if row.count >= control.hard:
            return Verdict.STOP | Verdict.BUDGET, entry
    return _GO_ON, entry


def _to_be_told(verdict: Verdict, flags: Flag, local: int) -> bool:
    """Whether a row gets a record: a boundary decided at, a stop, a withdrawal, a slot's first lost row."""
    if Verdict.LOST in verdict:
        return local == 0
    if verdict & (Verdict.STOP | Verdict.WITHDRAWN):
        return True
    return Verdict.STOPPED not in verdict and Flag.BOUNDARY in flags and Flag.THINKING in flags


def _after(position: int, entry: Entry | None, control: _Control | None) -> tuple[int, bool]:
    """What the token after a row must be (-1: free), and whether the locked ids are forbidden."""
    if entry is None or control is None or entry.stop < 0:
        return _FREE, False
    place = position - entry.stop
    return (control.handoff[place], False) if place < len(control.handoff) else (_FREE, True)


def force(logits: torch.Tensor, decided: Decided, rows: Rows, settings: SlotSettings) -> None:
    """Change `logits` [R, V] in place. A forced id that is masked is not raised: its row is left as it is."""
    columns = zip(decided.forced.tolist(), decided.locked.tolist(), rows.slot.tolist(), strict=True)
    for row, (forced, locked, slot) in zip(logits, columns, strict=True):
        if 0 <= forced < len(row) and row[forced] > -torch.inf:
            kept = row[forced].clone()
            row.fill_(-torch.inf)
            row[forced] = kept
        elif locked and slot != IDLE:
            for token in settings.locked[slot].tolist():
                if 0 <= token < len(row):
                    row[token].clamp_(max=LOWEST[logits.dtype])
