"""What the streaming head remembers of each slot: its state after each of the last few positions.

Knows slots, positions and states. No weights, and nothing of how an entry is computed.
"""

from __future__ import annotations

import torch

__all__ = ["EMPTY", "StreamState"]

#: The tag of an entry that holds nothing.
EMPTY = -1


class StreamState:
    """Entries of all slots, on one device; the entry of position p is p % W. W: `rows.window_for(drafts)`.

    `position` [S, W] int32: the position whose state an entry holds, or `EMPTY`. `h` [S, W, H] float32.
    An entry counts for position p only if its tag is p. That makes refused drafts harmless: the next step
    starts from the entry before its first row, and overwrites theirs.
    """

    def __init__(self, slots: int, window: int, states: int, device: torch.device | str = "cpu") -> None:
        if slots < 1 or window < 2 or states < 1:
            raise ValueError(
                f"{slots} slots of {window} entries of {states} hold nothing. Give at least 1, 2 and 1."
            )
        self.window = window
        self.position = torch.full((slots, window), EMPTY, dtype=torch.int32, device=device)
        self.h = torch.zeros((slots, window, states), device=device)

    def enter(self, slot: int, position: int, h: torch.Tensor | None = None) -> None:
        """A request takes the slot, or takes it again, with state `h` [H] (default zeros) after `position`.

        `position` is the last token already read, such as the last token of the prompt. Everything else that
        was known of the slot is forgotten. Does not wait for the device.
        """
        if position < 0:
            raise ValueError(f"position {position}: a slot is entered after a token, so give 0 or more.")
        entry = position % self.window
        self.leave(slot)
        self.position[slot, entry].fill_(position)
        if h is None:
            self.h[slot, entry].zero_()
        else:
            self.h[slot, entry].copy_(h, non_blocking=True)

    def leave(self, slot: int) -> None:
        """The slot is nobody's: a row that still names it scores NaN."""
        self.position[slot].fill_(EMPTY)

    def saved(self, slot: int, position: int) -> torch.Tensor:
        """A copy [H] of the state after `position`, to enter again with after a preemption. NaN where it is
        not known any more, so that whoever enters with it gets NaN scores, which stop nothing."""
        entry = position % self.window
        return self.h[slot, entry].where(self.position[slot, entry] == position, torch.nan)

    def read(self, slot: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For entries [B]: whether they are known [B], and their states [B, H]."""
        entry = position % self.window
        return (position >= 0) & (self.position[slot, entry] == position), self.h[slot, entry]

    def write(self, slot: torch.Tensor, position: torch.Tensor, known: torch.Tensor, h: torch.Tensor) -> None:
        """Write entries [B] with states `h` [B, H]; one that is not `known` [B] becomes empty."""
        entry = position % self.window
        self.position[slot, entry] = position.where(known, EMPTY).int()
        self.h[slot, entry] = h
