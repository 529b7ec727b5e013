"""Audited jobs that run on beside their stop: they take slots that nobody else wants, and give them back.

Knows jobs, rows that were parked and what those had read; the runner owns the slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from desist.proxy.engines.embedded.job import Job, Row
from desist.proxy.engines.embedded.slots import Snapshot

__all__ = ["Beside", "Parked"]


class Parked(NamedTuple):
    """A row that gave its slot back, and what it has read."""

    row: Row
    read: Snapshot


class Beside:
    """What runs on and waits for a slot: first those that had one before."""

    def __init__(self) -> None:
        self._waiting: deque[Job | Parked] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def park(self, row: Row, read: Snapshot) -> None:
        """Take a row out of its slot; it is the first to get one back."""
        self._waiting.appendleft(Parked(row, read))

    def take(self) -> Job | Parked:
        """The next one to get a slot."""
        return self._waiting.popleft()

    def abort(self, key: Hashable) -> bool:
        """Drop one that waits; False if it is not there."""
        for one in self._waiting:
            if _job(one).key == key:
                self._waiting.remove(one)
                return True
        return False

    def clear(self) -> list[Hashable]:
        """Drop all; their keys."""
        keys = [_job(one).key for one in self._waiting]
        self._waiting.clear()
        return keys


def _job(one: Job | Parked) -> Job:
    return one.row.job if isinstance(one, Parked) else one
