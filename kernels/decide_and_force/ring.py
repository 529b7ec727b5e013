"""What the device has decided, on its way to the host: a ring of records, and copies that wait for nobody.

The device appends and counts; the host copies now and then and reads what is new to it. A host that comes
too seldom loses the oldest records, and can tell how many.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

from desist.kernels.decide_and_force.verdict import Verdict

__all__ = ["LEAST", "RECORD_WORDS", "SMOOTHED", "Field", "Record", "Ring", "RingCopy"]

RECORD_WORDS = 8  # 32 bytes, like an entry of the state
LEAST = 1024  # places: all rows of one step must find room, so that no two of them share one


class Field(IntEnum):
    """Which of the 8 words of a record holds what. `SMOOTHED` is a double of the same record."""

    SLOT = 0
    POSITION = 1
    COUNT = 2
    VERDICT = 3
    SCORE = 4


SMOOTHED = 3  # of a record's 4 doubles: words 6 and 7


class Record(NamedTuple):
    """One boundary, stop or withdrawal, or a slot that was found lost. `position` is that of the row in the
    sequence, `count` its reasoning tokens; `score` and `smoothed` are NaN where there are none."""

    slot: int
    position: int
    count: int  # type: ignore[assignment]
    verdict: Verdict
    score: float
    smoothed: float


class Ring:
    """Room for `capacity` records on one device.

    `words` [capacity + 1, 8] int32 and `doubles` [capacity + 1, 4] float64 are one memory under two types.
    The last line holds the number of records ever appended, int64, so that one copy takes both. Record
    number n stands at n % capacity.
    """

    def __init__(self, capacity: int = 4096, device: torch.device | str = "cpu") -> None:
        if capacity < LEAST:
            raise ValueError(
                f"a ring of {capacity} records cannot take one step's rows. Give at least {LEAST}."
            )
        self.capacity = capacity
        self.words = torch.zeros((capacity + 1, RECORD_WORDS), dtype=torch.int32, device=device)
        self.doubles = self.words.view(torch.float64)
        self.head = self.words.view(torch.int64)[capacity, :1]

    def append(self, records: list[Record]) -> None:
        """What the kernel does, for the specification. Waits for the device."""
        head = int(self.head)
        for number, record in enumerate(records, head):
            line = torch.zeros(RECORD_WORDS, dtype=torch.int32)
            line[: Field.SCORE] = torch.tensor(tuple(map(int, record[: Field.SCORE])))
            line.view(torch.float32)[Field.SCORE] = record.score
            line.view(torch.float64)[SMOOTHED] = record.smoothed
            self.words[number % self.capacity].copy_(line)
        self.head.fill_(head + len(records))

    def copy_out(self) -> RingCopy:
        """A copy, as of the work that the device was given so far. On a GPU it is made later; none waits."""
        gpu = self.words.is_cuda
        host = torch.empty(self.words.shape, dtype=torch.int32, pin_memory=gpu)
        host.copy_(self.words, non_blocking=True)
        done = None
        if gpu:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(torch.cuda.current_stream(self.words.device))
        return RingCopy(host, done)


class RingCopy:
    """A copy of a ring that may still be on its way."""

    def __init__(self, words: torch.Tensor, done: torch.cuda.Event | None) -> None:
        self._words, self._done = words, done
        self._capacity = len(words) - 1

    @property
    def ready(self) -> bool:
        """Whether the copy has arrived. The other methods wait until it has."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]

    def head(self) -> int:
        """How many records were ever appended: what `since` is to be the next time."""
        if self._done is not None:
            self._done.synchronize()
        return int(self._words.view(torch.int64)[self._capacity, 0])

    def lost(self, since: int) -> int:
        """How many records after the first `since` were written over before this copy."""
        return max(0, self.head() - self._capacity - since)

    def records(self, since: int) -> list[Record]:
        """The records after the first `since` ones, in order, without those that are lost."""
        head = self.head()
        places = torch.arange(max(since, head - self._capacity, 0), head) % self._capacity
        lines = self._words[places]
        scores = lines.view(torch.float32)[:, Field.SCORE].tolist()
        smoothed = lines.view(torch.float64)[:, SMOOTHED].tolist()
        return [
            Record(slot, position, count, Verdict(verdict), score, smooth)
            for (slot, position, count, verdict), score, smooth in zip(
                lines[:, : Field.SCORE].tolist(), scores, smoothed, strict=True
            )
        ]
