"""What the stop machine remembers of each slot: one entry for each of its last positions.

The entry of position p is what held after its token was read. It stands at p % W and counts only while its
tag says p: a step starts from the entry just before its first row and writes over what lies beyond, so a
stop decided at a draft that is refused vanishes, and one that such a draft spoke against comes back.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch

__all__ = ["SMOOTHED", "WORDS", "DecideState", "Entry", "Word"]

WORDS = 8  # of an entry: 32 bytes, what a device reads at least
_NONE = -1


class Word(IntEnum):
    """Which of the 8 words of an entry holds what. `SMOOTHED` is a double of the same entry."""

    POSITION = 0
    STREAK = 1
    STOP = 2
    RULE = 3
    WAITING = 4


SMOOTHED = 3  # of an entry's 4 doubles: words 6 and 7


class Entry(NamedTuple):
    """What holds after a token.

    `smoothed`: the smoothed score, NaN before the first. `streak`: boundaries in a row above the threshold.
    `stop`: position of the token at which the stop in force was decided, -1 for none; `rule`: which one
    (bits of `Verdict`). `waiting`: a stop was taken back, and no boundary has come since.
    """

    smoothed: float = math.nan
    streak: int = 0
    stop: int = _NONE
    rule: int = 0
    waiting: bool = False


class DecideState:
    """Entries of all slots, on one device. W: `rows.window_for(drafts)`.

    `words` [S, W, 8] int32 and `doubles` [S, W, 4] float64 are one memory under two types.
    """

    def __init__(self, slots: int, window: int, device: torch.device | str = "cpu") -> None:
        if slots < 1 or window < 2:
            raise ValueError(f"{slots} slots of {window} entries hold nothing. Give at least 1 and 2.")
        self.window = window
        self.words = torch.zeros((slots, window, WORDS), dtype=torch.int32, device=device)
        self.doubles = self.words.view(torch.float64)
        self.words[..., Word.POSITION] = _NONE

    @property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self.words.device

    def enter(self, slot: int, position: int, entry: Entry = Entry()) -> None:  # noqa: B008 (a frozen value)
        """A request takes the slot, or takes it again: `entry` holds after `position`, the last token read.

        Everything else that was known of the slot is forgotten. Does not wait for the device.
        """
        if position < 0:
            raise ValueError(f"position {position}: a slot is entered after a token, so give 0 or more.")
        self.leave(slot)
        kept = _words(position, entry).to(torch.int32)
        self.words[slot, position % self.window].copy_(kept, non_blocking=True)

    def leave(self, slot: int) -> None:
        """The slot is nobody's: a row that still names it comes out as lost."""
        self.words[slot, :, Word.POSITION].fill_(_NONE)

    def kept(self, slot: int, position: int) -> Entry | None:
        """The entry of `position`; None if it is not there. Waits for the device."""
        at = slot, position % self.window
        words = self.words[at].cpu()
        if position < 0 or words[Word.POSITION] != position:
            return None
        _, streak, stop, rule, waiting = words[:5].tolist()
        return Entry(float(words.view(torch.float64)[SMOOTHED]), streak, stop, rule, bool(waiting))

    def keep(self, slot: int, position: int, entry: Entry | None) -> None:
        """Write the entry of `position`; without one, see that no older one is taken for it."""
        words = self.words[slot, position % self.window]
        if entry is None:
            words[Word.POSITION] = _NONE
        else:
            words.copy_(_words(position, entry))


def _words(position: int, entry: Entry) -> torch.Tensor:
    """The 8 words of an entry."""
    words = torch.zeros(WORDS, dtype=torch.int32)
    words[:5] = torch.tensor((position, entry.streak, entry.stop, int(entry.rule), int(entry.waiting)))
    words.view(torch.float64)[SMOOTHED] = entry.smoothed
    return words
