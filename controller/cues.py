"""Cue words in a stream of text: where a word such as "wait" has just been read.

Knows characters only. The rule is causal: a cue is found with the piece (token) that holds its last
character. It must stand alone as a word: no letter, digit or underscore before it, and none after it
WITHIN THE SAME PIECE. What a later piece will add is not known at that moment, and the model's state
must be read at the cue itself, so "wait" followed by a piece "ing" is a hit. In the vocabularies in use
"waiting", "await" and "waiter" are pieces of their own, so this is rare; it is never undone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CueMatcher", "CueState", "plain"]


class CueState(NamedTuple):
    """Where a matcher stands. `tail`: the last characters read; `offset`: how many came before it."""

    tail: str = ""
    offset: int = 0
    last: tuple[int, int] = (-1, -1)  # (start, cue) of the newest hit, so that "hmm" + "m" counts once


def plain(text: str) -> str:
    """As cues are compared: small letters, one for each character, whatever stands beside it.

    A dotted capital I would become two, and which small sigma is written hangs on its neighbours.
    """
    return text.replace("\u0130", "I").lower().replace("\u03c2", "\u03c3")


def _cased(character: str) -> bool:
    """Whether words are told apart at this character (not so in scripts written without spaces)."""
    return character.lower() != character.upper() or character.isdigit() or character == "_"


def _pattern(cue: str) -> str:
    """One cue: any white space for a space, either apostrophe, a drawn-out doubled end (hmm, hmmm)."""
    body = "".join(r"\s" if c.isspace() else "['\u2019]" if c in "'\u2019" else re.escape(c) for c in cue)
    if len(cue) > 1 and cue[-1].lower() == cue[-2].lower() and cue[-1].isalpha():
        body += "+"
    left = r"(?<!\w)" if _cased(cue[0]) else ""
    right = r"(?!\w)" if _cased(cue[-1]) else ""
    return f"({left}{body}{right})"


class CueMatcher:
    """Finds cues without case in text that comes in pieces. Holds no state: see `CueState`."""

    def __init__(self, cues: Sequence[str]) -> None:
        longest_first = sorted({plain(cue) for cue in cues if cue}, key=lambda cue: (-len(cue), cue))
        alternatives = "|".join(_pattern(cue) for cue in longest_first)
        # Looked ahead from every place, so that cues may overlap.
        self._pattern = re.compile(f"(?={alternatives})") if longest_first else None
        # A cheap look first: the last word of a cue must end in the new text. Most pieces end there.
        self._words = tuple({re.split(r"[\s'\u2019]", cue)[-1] for cue in longest_first})
        # At least one character of a hit is new: so many before it hold the rest, and the one before that.
        self._keep = max((len(cue) for cue in longest_first), default=0)

    def feed(self, state: CueState, text: str) -> tuple[CueState, str | None]:
        """Read one piece: the state after it, and the cue it completed, as written (the first one)."""
        if self._pattern is None or not text:
            return state, None
        window = state.tail + text
        last, found = state.last, None
        lowered = plain(window)
        new = len(state.tail)
        hopeful = [word for word in self._words if lowered.rfind(word) + len(word) > new]
        for match in self._pattern.finditer(lowered) if hopeful else ():
            cue = match.lastindex or 0
            start, end = match.span(cue)
            if end <= new or (start == 0 and state.offset):
                continue
            hit = (state.offset + start, cue)
            if hit != last:
                last, found = hit, found or window[start:end]
        cut = max(0, len(window) - self._keep)
        return CueState(window[cut:], state.offset + cut, last), found

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of the cues in one piece that nothing stands before."""
        if self._pattern is None:
            return []
        return [match.span(match.lastindex or 0) for match in self._pattern.finditer(plain(text))]
