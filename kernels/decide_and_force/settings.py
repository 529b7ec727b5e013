"""How each slot is to be controlled: what the host writes and the kernels only read.

Knows numbers and token ids; no policies and no certificates. A slot's numbers stand in one line of 64 bytes,
which is one access of the device and one copy from the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch

__all__ = ["EMA", "LAM", "MODES", "WORDS", "Line", "Mode", "SlotControl", "SlotSettings"]

Mode = Literal["off", "shadow", "active"]
MODES: tuple[Mode, ...] = ("off", "shadow", "active")

_NEVER = 2**31 - 1  # a limit that no count reaches
_NO_TOKEN = -1


class Line(IntEnum):
    """Which of the 16 words of a slot's line holds what. `LAM` and `EMA` are doubles of the same line."""

    PATIENCE = 0
    WARMUP = 1
    SOFT = 2
    HARD = 3
    MODE = 4
    HANDOFF_LENGTH = 5
    ASKED_AT = 12
    HOLD = 13
    KNOWN = 14


LAM, EMA = 4, 5  # of the line's 8 doubles: words 8 to 11
WORDS = 16
_RULES = slice(0, Line.ASKED_AT)  # the words that `change` writes


@dataclass(frozen=True, slots=True)
class SlotControl:
    """One request's rules, as in the stop machine; positions count reasoning tokens.

    `lam` None never stops. From `soft` on, the budget stops at a boundary outside a hold-off zone, at `hard`
    anywhere; None is no limit. `handoff`: ids to be forced after a stop. `locked`: ids that may not be
    sampled after the hand-off.
    """

    mode: Mode = "active"
    lam: float | None = None
    ema: float = 1.0
    patience: int = 1
    warmup: int = 0
    soft: int | None = None
    hard: int | None = None
    handoff: Sequence[int] = ()
    locked: Sequence[int] = ()


class SlotSettings:
    """Settings of all slots, on one device; `handoff` and `locked`: how many ids a slot can hold.

    `words` [S, 16] int32 and `doubles` [S, 8] float64 are the lines, one memory under two types (`Line`);
    `handoff` [S, H] and `locked` [S, L] int32, -1 behind the last id. No method waits for the device.
    """

    def __init__(
        self, slots: int, *, handoff: int = 64, locked: int = 4, device: torch.device | str = "cpu"
    ) -> None:
        if min(slots, handoff, locked) < 1:
            raise ValueError(
                f"{slots} slots of {handoff} and {locked} ids hold nothing. Give at least 1 of each."
            )
        self.words = _line(SlotControl(mode="off"), hold=False, known=-1).to(device).repeat(slots, 1)
        self.doubles = self.words.view(torch.float64)
        self.handoff = torch.full((slots, handoff), _NO_TOKEN, dtype=torch.int32, device=device)
        self.locked = torch.full((slots, locked), _NO_TOKEN, dtype=torch.int32, device=device)

    def enter(self, slot: int, control: SlotControl, *, hold: bool = False, known: int = -1) -> None:
        """A request takes the slot: nothing is asked for; `hold` and `known` as in `hold_off`."""
        self._put_ids(slot, control)
        self.words[slot].copy_(_line(control, hold=hold, known=known), non_blocking=True)

    def change(self, slot: int, control: SlotControl) -> None:
        """Other rules for the request in the slot. What was asked for, and a zone, stay as they are."""
        self._put_ids(slot, control)
        line = _line(control, hold=False, known=-1)
        self.words[slot, _RULES].copy_(line[_RULES], non_blocking=True)

    def ask(self, slot: int, asked_at: int) -> None:
        """Stop it now, asked for when `asked_at` reasoning tokens had been read. The first time counts."""
        self.words[slot, Line.ASKED_AT].fill_(asked_at)

    def hold_off(self, slot: int, hold: bool, known: int) -> None:
        """Whether a hold-off zone was open after the token at position `known` of the sequence.

        A later token that may open or close one counts as one that has opened it.
        """
        told = torch.tensor((int(hold), known), dtype=torch.int32)
        self.words[slot, Line.HOLD : Line.KNOWN + 1].copy_(told, non_blocking=True)

    def _put_ids(self, slot: int, control: SlotControl) -> None:
        ids = ("handoff", control.handoff, self.handoff), ("locked", control.locked, self.locked)
        for name, given, kept in ids:
            room = kept.shape[1]
            if len(given) > room:
                raise ValueError(
                    f"{name} has {len(given)} ids, a slot holds {room}. Make the settings with more."
                )
            padded = [*given, *[_NO_TOKEN] * (room - len(given))]
            kept[slot].copy_(torch.tensor(padded, dtype=torch.int32), non_blocking=True)


def _line(control: SlotControl, *, hold: bool, known: int) -> torch.Tensor:
    """The line [16] of a slot at which nothing is asked for."""
    line = torch.zeros(WORDS, dtype=torch.int32)
    soft, hard = (_NEVER if limit is None else limit for limit in (control.soft, control.hard))
    line[Line.PATIENCE], line[Line.WARMUP] = control.patience, control.warmup
    line[Line.SOFT], line[Line.HARD] = soft, hard
    line[Line.MODE], line[Line.HANDOFF_LENGTH] = MODES.index(control.mode), len(control.handoff)
    line[Line.ASKED_AT], line[Line.HOLD], line[Line.KNOWN] = -1, int(hold), known
    doubles = line.view(torch.float64)
    doubles[LAM], doubles[EMA] = math.inf if control.lam is None else control.lam, control.ema
    return line
