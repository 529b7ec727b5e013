"""Boundaries of shadow requests that wait for their scores, so that many are scored in one call.

A shadow score stops nothing, so nothing waits for it but its event. One call costs nearly the same for
one row as for a block of them: it reads all the probe's weights. Knows rows and probes; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from desist.controller import Boundary
from desist.kernels.reference import BLOCK_ROWS
from desist.proxy.engines.vllm.inside.scoring import TapRows
from desist.proxy.engines.vllm.inside.tracked import Tracked

if TYPE_CHECKING:
    import torch

__all__ = ["Backlog", "Owed", "may_wait", "scores_owed"]

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
    """What is owed, in order of time. The hidden states are copied when they are there."""

    def __init__(self) -> None:
        self._owed: list[Owed] = []
        self._rows: list[torch.Tensor] = []  # as many rows each as were added together
        self._debtors: set[int] = set()
        self._steps = 0

    def add(self, owed: Sequence[Owed], taps: TapRows, rows: Sequence[int]) -> None:
        """Boundaries of one step and of one set of probes, at these rows of logits."""
        self._rows.append(owed[0].one.scoring.boundary_rows(taps, rows))
        self._owed += owed
        self._debtors.update(id(each.one) for each in owed)

    def owes(self, requests: Iterable[Tracked]) -> bool:
        """Whether one of the requests has a boundary here."""
        return bool(self._debtors) and any(id(one) in self._debtors for one in requests)

    def tick(self) -> bool:
        """A step has passed; whether it is time to score."""
        if not self._owed:
            return False
        self._steps += 1
        return len(self._owed) >= BLOCK_ROWS or self._steps >= _MOST_STEPS

    def take(self) -> tuple[list[Owed], list[torch.Tensor]]:
        """All that is owed, and the rows of hidden states (side by side, as `add` read them)."""
        owed, rows = self._owed, self._rows
        self._owed, self._rows, self._steps = [], [], 0
        self._debtors.clear()
        return owed, rows


def scores_owed(owed: Sequence[Owed], rows: Sequence[Any]) -> list[float]:
    """Scores "probe" of what `take` gave: one call for each set of probes, usually one for all."""
    import torch

    found: list[float] = []
    start = 0
    while start < len(owed):
        scoring, end = owed[start].one.scoring, start
        while end < len(owed) and owed[end].one.scoring is scoring:
            end += 1
        found += scoring.scores_of_rows(torch.cat(list(rows))[start:end])
        start = end
    return found
