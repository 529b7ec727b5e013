"""Boundaries of shadow requests that wait for their scores, so that many are scored in one call.

A shadow score stops nothing, so nothing waits for it but its event. One call costs nearly the same for
one row as for a block of them: it reads all the probe's weights. Knows rows and probes; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from desist.controller import Boundary
from desist.kernels.reference import BLOCK_ROWS
from desist.proxy.engines.vllm.inside.scoring import Scoring, TapRows
from desist.proxy.engines.vllm.inside.tracked import Tracked

if TYPE_CHECKING:
    import torch

__all__ = ["Backlog", "Owed", "may_wait"]

#: Steps that a score may be late: its event is for people and counters, who look a few times a second.
_MOST_STEPS = 64


class Owed(NamedTuple):
    """A boundary that was passed. `read`: generated tokens at it; `held`: whether a zone was open."""

    one: Tracked
    boundary: Boundary
    read: int
    held: bool


def may_wait(one: Tracked) -> bool:
    """Whether no score of this request can change what is generated, and no other rule is at work."""
    return (
        one.mode == "shadow"
        and not one.failed
        and one.stop_at is None
        and not one.scoring.streams
        and one.session.machine.unlimited
    )


class Backlog:
    """What is owed, by set of probes (a request keeps the one that it entered with), in order of time."""

    def __init__(self) -> None:
        self._owed: dict[Scoring, tuple[list[Owed], list[torch.Tensor]]] = {}
        self._debtors: set[int] = set()
        self._count = self._steps = 0

    def add(self, scoring: Scoring, owed: Sequence[Owed], taps: TapRows, rows: Sequence[int]) -> None:
        """Boundaries of one step at these rows of logits; their hidden states are copied."""
        kept, read = self._owed.setdefault(scoring, ([], []))
        read.append(scoring.boundary_rows(taps, rows))
        kept += owed
        self._debtors.update(id(each.one) for each in owed)
        self._count += len(owed)

    def owes(self, requests: Iterable[Tracked]) -> bool:
        """Whether one of the requests has a boundary here."""
        return bool(self._debtors) and any(id(one) in self._debtors for one in requests)

    def tick(self) -> bool:
        """A step has passed; whether it is time to score."""
        if not self._count:
            return False
        self._steps += 1
        return self._count >= BLOCK_ROWS or self._steps >= _MOST_STEPS

    def take(self) -> list[tuple[Scoring, list[Owed], list[torch.Tensor]]]:
        """All that is owed: the boundaries of each set of probes, and what it reads of them, in order."""
        taken = [(scoring, owed, read) for scoring, (owed, read) in self._owed.items()]
        self._owed.clear()
        self._debtors.clear()
        self._count = self._steps = 0
        return taken
