"""Loops in reasoning: a text that goes round, word for word or with one changing number.

Knows characters only, reads only the past, and gives the same verdict at the same character however the text
is cut into pieces. Counting is no loop: where numbers run on (1, 2, 3, ...) more repetitions are needed,
and short items with a running number ("Item 7.") never count. Knows nothing of tokens and of what a stop
does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["LoopDetector", "LoopRule"]

_STEP = 32  # characters between two looks
_KEY = 24  # characters at the end whose earlier places give the periods to try
_TRIES = 8
_KEPT = 8192  # masked characters that are looked at
_MASK = "\x00"
_NUMBER = re.compile(r"\d+")
_SLOT = re.compile(r"\x00(?:[.,:/]\x00)*")  # 3.14 and 12:30 are one number each
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class LoopRule:
    """How often a text must come one after the other to be a loop.

    Word for word: `repeats` times and `chars` characters in all (`bare_chars` where there is no letter in it,
    such as rules and rows of zeros); a text of `long_chars` needs only `long_repeats`. With one number that
    changes: `near` times; `running` times where that number only rises, or only falls. The repeated text then
    has at least `words` words.
    """

    repeats: int = 6
    chars: int = 160
    bare_chars: int = 400
    long_chars: int = 200
    long_repeats: int = 3
    near: int = 12
    running: int = 24
    words: int = 4


class LoopDetector:
    """Reads reasoning in pieces of any size; `found` tells where a loop was seen.

    >>> loops = LoopDetector()
    >>> loops.feed("Wait, let me check the sum again: 4+9=13. " * 200)
    True
    >>> LoopDetector().feed(", ".join(str(n) for n in range(1000)))
    False
    """

    __slots__ = ("_n_new", "_new", "_numbers", "_read", "_rule", "_tail", "found")

    def __init__(self, rule: LoopRule | None = None) -> None:
        self._rule = rule or LoopRule()
        self._tail = ""  # the text with each number masked
        self._numbers: list[str] = []  # those that are masked in it
        self._new: list[str] = []  # pieces read since the last look
        self._n_new = 0
        self._read = 0  # up to the last look
        #: Characters that had been read when the loop was seen; None: none was.
        self.found: int | None = None

    def feed(self, text: str) -> bool:
        """Read the next piece; whether a loop has been seen by its end."""
        self._n_new += len(text)
        self._new.append(text)
        if self._n_new < _STEP:  # most pieces are a token: they are only kept
            return self.found is not None
        text = "".join(self._new).replace(_MASK, " ")
        at = 0
        while len(text) - at >= _STEP and self.found is None:
            self._take(text[at : at + _STEP])
            at += _STEP
            self._read += _STEP
            if self._loops():
                self.found = self._read
        self._new, self._n_new = [text[at:]], len(text) - at
        return self.found is not None

    def _take(self, text: str) -> None:
        numbers = _NUMBER.findall(text)
        if numbers:
            masked = _NUMBER.sub(_MASK, text)
            if self._tail.endswith(_MASK) and masked.startswith(_MASK):  # one number in two pieces
                self._numbers[-1] += numbers.pop(0)
                masked = masked[1:]
            self._numbers += numbers
            text = masked
        self._tail += text
        if len(self._tail) > 2 * _KEPT:
            gone, self._tail = self._tail[:-_KEPT], self._tail[-_KEPT:]
            del self._numbers[: gone.count(_MASK)]

    def _loops(self) -> bool:
        tail = self._tail.removesuffix(_MASK)  # the number may go on
        if len(tail) < self._rule.chars:
            return False
        key, end = tail[-_KEY:], len(tail) - 1
        for _ in range(_TRIES):
            place = tail.rfind(key, 0, end)
            if place < 0:
                return False
            numbers = self._numbers[:-1] if len(tail) < len(self._tail) else self._numbers
            if self._goes_round(tail, numbers, len(tail) - _KEY - place):
                return True
            end = place + _KEY - 1
        return False

    def _goes_round(self, tail: str, numbers: Sequence[str], period: int) -> bool:
        rule, unit = self._rule, tail[-period:]
        chars = rule.chars if any(map(str.isalpha, unit)) else rule.bare_chars
        least = rule.long_repeats if period >= rule.long_chars else rule.repeats
        times = max(least, -(-chars // period))
        if tail.endswith(unit * times) and not _changing(unit, numbers, times):
            return True
        if _MASK not in unit or len(_WORD.findall(unit)) < rule.words:
            return False
        for times in (rule.near, rule.running):
            if not tail.endswith(unit * times):
                return False
            changing = _changing(unit, numbers, times)
            if len(changing) == 1 and (times == rule.running or not _runs(changing[0])):
                return True
        return False


def _changing(unit: str, numbers: Sequence[str], times: int) -> list[list[tuple[int, ...]]]:
    """The numbers of `unit` that are not the same each time, with their values over the last `times`."""
    slots = [match.count(_MASK) for match in _SLOT.findall(unit)]
    width = sum(slots)
    if not width:
        return []
    last = numbers[len(numbers) - width * times :]
    changing, start = [], 0
    for size in slots:
        values = [
            tuple(int(each[-18:]) for each in last[row * width + start : row * width + start + size])
            for row in range(times)
        ]
        if len(set(values)) > 1:
            changing.append(values)
        start += size
    return changing


def _runs(values: Sequence[tuple[int, ...]]) -> bool:
    """Whether the values only rise, or only fall."""
    return all(a < b for a, b in pairwise(values)) or all(a > b for a, b in pairwise(values))
