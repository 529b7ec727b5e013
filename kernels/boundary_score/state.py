"""What is kept for a slot: one entry for each of its last positions, found by position.

The entry of position p is what was known after its token was read. It stands at p % W and is valid only
while its tag says p, so a step need not be told which drafts were refused: it starts from the entry just
before its first row and writes over what lies beyond.
"""

from __future__ import annotations

import torch

__all__ = ["BoundaryState"]

_FREE = -1


class BoundaryState:
    """Entries [S, W] int32 of all slots, on one device. W: `rows.window_for(drafts)`.

    `position`: the tag, -1 for none. `automaton`: the state of the token automaton. `count`: reasoning
    tokens read. `periods`: every_n boundaries passed. `zone`: position of the last token that may have
    opened or closed a hold-off zone, -1 for none.
    """

    def __init__(self, slots: int, window: int, device: torch.device | str = "cpu") -> None:
        if slots < 1 or window < 2:
            raise ValueError(f"{slots} slots of {window} entries hold nothing. Give at least 1 and 2.")
        self.window = window
        # One block of memory: the five values of an entry are five views of it.
        values = torch.full((5, slots, window), _FREE, dtype=torch.int32, device=device)
        self.position, self.automaton, self.count, self.periods, self.zone = values
        self._values = values

    @property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self._values.device

    def enter(
        self, slot: int, position: int, automaton: int, *, count: int = 0, periods: int = 0, zone: int = _FREE
    ) -> None:
        """A request takes the slot, or takes it again: all up to `position` has been read by the host.

        Everything else that was known of the slot is forgotten. Does not wait for the device.
        """
        if position < 0 or automaton < 0:
            raise ValueError(f"position {position} and state {automaton} must both be 0 or more.")
        self.leave(slot)
        # From the host in one copy; fill by fill it would be one launch for each value.
        entry = torch.tensor((position, automaton, count, periods, zone), dtype=torch.int32)
        self._values[:, slot, position % self.window].copy_(entry, non_blocking=True)

    def leave(self, slot: int) -> None:
        """The slot is nobody's: a row that still names it comes out as lost."""
        self.position[slot].fill_(_FREE)
