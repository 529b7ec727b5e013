"""Places that several processes share: one limit for all of them, and one order of arrival.

Knows a small file in memory, a row for each process: requests served, requests waiting, since when the oldest
waits. A lock on the file guards it, which the system lifts when its holder dies; the parent clears the row of
a process that has died, so that its places are free again. Knows no requests.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SharedPlaces"]

_SERVED, _WAITING, _SINCE, _ROW = 0, 1, 2, 3
_STALE_S = 120.0  # one that waits for longer has a process that is stuck: others need not wait for it


class SharedPlaces:
    """The view of one process, which has row `row` of `rows` in the file `path` (made where it is missing).

    Times are of the monotonic clock, which is one for all processes of a machine.
    """

    def __init__(self, path: Path, row: int, rows: int) -> None:
        size = 8 * _ROW * rows
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        self._cells = memoryview(self._memory).cast("d")
        self._at, self._rows = _ROW * row, rows

    def close(self) -> None:
        self._cells.release()
        self._memory.close()
        os.close(self._file)

    def take(self, limit: int, since: float) -> bool:
        """Take a place of `limit` for one that came at `since`; False: none is free, or others come first."""
        with self._locked():
            if self._sum(_SERVED) >= limit or self._others_wait(since):
                return False
            self._cells[self._at + _SERVED] += 1
            return True

    def give(self) -> None:
        """Give a place back."""
        with self._locked():
            self._cells[self._at + _SERVED] = max(0.0, self._cells[self._at + _SERVED] - 1)

    def note(self, waiting: int, since: float) -> None:
        """How many wait in this process, and when the first of them came."""
        with self._locked():
            self._cells[self._at + _WAITING] = waiting
            self._cells[self._at + _SINCE] = since

    def clear(self, row: int) -> None:
        """Nobody is served in `row`, and nobody waits: its process is gone."""
        with self._locked():
            for cell in range(_ROW):
                self._cells[_ROW * row + cell] = 0.0

    @property
    def served(self) -> int:
        """Requests served by all processes."""
        with self._locked():
            return self._sum(_SERVED)

    @property
    def waiting(self) -> int:
        """Requests that wait in all processes."""
        with self._locked():
            return self._sum(_WAITING)

    def _sum(self, cell: int) -> int:
        return int(sum(self._cells[cell::_ROW]))

    def _others_wait(self, since: float) -> bool:
        cells, stale = self._cells, time.monotonic() - _STALE_S
        rows = (at for at in range(0, _ROW * self._rows, _ROW) if at != self._at)
        return any(cells[at + _WAITING] and stale < cells[at + _SINCE] < since for at in rows)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
