"""What of a token's text, and of the text before it, can still matter to a cue or to a paragraph.

A vocabulary has a hundred thousand texts, but a cue sees little of each. Here a text is rewritten to a short
one that does the same wherever it stands, so that tokens with one rewriting are one kind of token
(`automaton`). Knows cues and characters; no token ids, no tags, no counts.

Which characters are the same to a cue is told by `cues.plain`, and which cues may still be completed is asked
of `CueMatcher` itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from desist.controller.cues import CueMatcher, CueState, plain
from desist.data.errors import ControlError

__all__ = ["OTHER", "Signatures"]

#: Stands for what is no part of a word, no white space and in no cue; bytes in error are read as it, too.
OTHER = "\ufffd"

_ALL = range(0x110000)
_WORD = "\ud801"  # the sort of what is in words; no character either
_INVALID = "\ud800"  # a place that no UTF-8 stands for
_LEAST = {2: 0x80, 3: 0x800, 4: 0x10000}  # smallest code point that is written in so many bytes


class Signatures:
    """The rewritings for one profile's cues, none if it has none.

    Raises `ControlError` for a cue with U+FFFD, as which all bytes in error are read.
    """

    def __init__(self, cues: Sequence[str]) -> None:
        for cue in cues:
            if OTHER in cue:
                raise ControlError(
                    f"the cue {cue!r} holds U+FFFD, as which bytes in error are read. "
                    "Leave the cue out, or find boundaries on the host."
                )
        self._matcher = CueMatcher(cues)
        self._letters = frozenset(c for cue in cues for c in _same(cue) if not c.isspace())
        # The one that stands for all letters and digits that are in no cue.
        self._letter = next(c for c in map(chr, _ALL) if c.isalnum() and _same(c) not in self._letters)
        self._folded: dict[int, str] = {}
        self._longest = max(map(len, cues), default=0)
        # A longer run does what one of this length does: so "hmmm", drawn out at will, has an end.
        self._limit = self._longest + 2
        self._run = re.compile(rf"(.)\1{{{self._limit},}}", re.DOTALL)
        self._cues = tuple(dict.fromkeys(_flat(self.fold(cue)) for cue in cues))
        self._inside = set(self._parts())
        self._ends = set(self._endings())
        self._alive = set(self._beginnings())
        self._begun = {
            drawn[:size] for drawn in map(self._drawn, self._cues) for size in range(1, len(drawn) + 1)
        }
        self._next: dict[str, frozenset[str]] = {}
        self._short: dict[tuple[str, bool], str] = {}
        self._unfinished: dict[bytes, tuple[bytes, bool]] = {}
        self._first: dict[str, bytes] = {}

    @property
    def kept(self) -> int:
        """Characters that the matcher keeps, one at least."""
        return max(1, self._longest)

    def fold(self, text: str) -> str:
        """Each character as the one that stands for all that are the same to cues and paragraphs."""
        for character in set(text):
            if ord(character) not in self._folded:
                self._folded[ord(character)] = self._stand_in(character)
        return text.translate(self._folded)

    def squeeze(self, text: str, *, joined: bool = False) -> str:
        """A short text that does what this one does, after any text: not yet the shortest, but few.

        `joined`: a character stands before it in the same token; a cue that ends there is none in a word.
        """
        key = self.fold(text), joined
        if key not in self._short:
            self._short[key] = self._squeezed(*key)
        return self._short[key]

    def _squeezed(self, folded: str, joined: bool) -> str:
        text = self._run.sub(lambda run: run[1] * self._limit, folded)
        flat = _flat(text)
        if not text or flat in self._inside:
            return text
        # Cues that are whole, the head in which one that began before may end, the tail in which one may
        # begin. All else is filling.
        head, tail = (0, self._ended(flat)), (self._live_from(flat) or len(flat), len(flat))
        short, done = "", 0
        for start, end in sorted((head, tail, *self._matcher.spans(text))):
            if start > done:
                short += self._filling(text[done:start], keep_first=joined or done > 0)
            short, done = short + text[max(done, start) : end], max(done, end)
        return short

    def under_way(self, text: str) -> tuple[str, int]:
        """What is left of all text so far: the cues that may still be completed, after one character.

        That character only tells whether it is part of a word. The number is its place in `text`.
        """
        flat = _flat(self.fold(text))
        start = self._live_from(flat) or len(flat)
        return self._context(flat[start - 1]) + flat[start:], start - 1

    def next_letters(self, tail: str) -> frozenset[str]:
        """The folded characters with which a cue that began in `tail`, after its first character, goes on.

        Any other character ends all cues that are under way.
        """
        known = self._next.get(tail)
        if known is None:
            starts = [_flat(tail[start:]) for start in range(1, len(tail))]
            letters = {c for c in self._letters | {" "} if any(begun + c in self._begun for begun in starts)}
            known = self._next[tail] = frozenset(letters | {"\n"} if " " in letters else letters)
        return known

    def before(self, tail: str) -> str:
        """What is left of `tail` where all cues have ended in it."""
        return self._context(tail[-1])

    def unfinished(self, pending: bytes) -> tuple[bytes, bool]:
        """The first bytes of a character: those that stand for all that can become the same characters.

        And whether any of these is in a cue or is white space: all others end a cue that is under way.
        """
        known = self._unfinished.get(pending)
        if known is None:
            become = self._become(pending)
            matters = not set(become) <= {self._letter, OTHER, _INVALID}
            known = self._unfinished[pending] = self._first.setdefault(become, pending), matters
        return known

    def _stand_in(self, character: str) -> str:
        if (same := _same(character)) in self._letters:
            return same
        if character.isspace():
            return "\n" if character == "\n" else " "
        return self._context(character)

    def _context(self, character: str) -> str:
        return self._letter if character.isalnum() or character == "_" else OTHER

    def _plain(self, text: str) -> str:
        """A folded text without the letters of cues."""
        return "".join(c if c.isspace() else self._context(c) for c in text)

    def _filling(self, text: str, *, keep_first: bool) -> str:
        """Text in which no cue begins or ends: line ends, and whether there is anything between them.

        The last character tells whether a word may begin after it, the first whether one has ended before it.
        """
        flat = self._plain(text)
        if flat.isspace():
            return flat
        between = re.sub(r"[^\n]+", OTHER, flat[keep_first:-1].replace(" ", ""))
        first = flat[: keep_first and len(flat) > 1]
        return first + re.sub(r"\n{2,}", "\n\n", between) + flat[-1]

    def _ended(self, flat: str) -> int:
        """Characters of a text up to the last place where a cue that began before it may end."""
        ended = 0
        for size in range(1, len(flat)):
            if flat[:size] not in self._inside:
                break
            if flat[:size] in self._ends:
                ended = size
        return ended

    def _live_from(self, flat: str) -> int | None:
        """Where the earliest cue starts that may still be completed; the character before it is known."""
        for start in range(max(1, len(flat) - self._longest), len(flat)):
            if self._context(flat[start - 1]) + flat[start:] in self._alive:
                return start
        return None

    def _parts(self) -> Iterator[str]:
        """All that may stand inside a cue. Each cue is taken as if it could be drawn out."""
        for cue in self._cues:
            drawn = self._drawn(cue)
            for start, end in itertools.combinations(range(len(drawn) + 1), 2):
                yield drawn[start:end]

    def _drawn(self, cue: str) -> str:
        return cue + cue[-1] * self._limit

    def _endings(self) -> Iterator[str]:
        for cue in self._cues:
            for start, more in itertools.product(range(1, len(cue) + 1), range(self._limit)):
                yield cue[start:] + cue[-1] * more

    def _beginnings(self) -> Iterator[str]:
        """One character and a cue's first ones, where the matcher would find the cue if the rest came."""
        for cue, size in itertools.product(self._cues, range(1, self._longest + 1)):
            begun, rest = self._drawn(cue)[:size], cue[size:] or cue[-1]
            for before in (self._letter, OTHER):
                if self._matcher.feed(CueState(before + begun, 1), rest)[1] is not None:
                    yield before + begun

    @cached_property
    def _alphabet(self) -> str:
        """The stand-in of every code point; needed only where tokens end inside characters."""
        same, sorts = _code_points()
        alphabet = list(sorts.replace(_WORD, self._letter))
        letters = re.escape("".join(sorted(self._letters)))
        for found in re.finditer(f"[{letters}]", same) if letters else ():
            alphabet[found.start()] = found[0]
        return "".join(alphabet)

    def _become(self, pending: bytes) -> str:
        """The stand-ins of all characters that begin with these bytes, in order."""
        size = 2 if pending[0] < 0xE0 else 3 if pending[0] < 0xF0 else 4
        value = pending[0] & (0xFF >> (size + 1))
        for byte in pending[1:]:
            value = value << 6 | byte & 0x3F
        bits = 6 * (size - len(pending))
        return self._alphabet[max(value << bits, _LEAST[size]) : (value + 1) << bits]


@cache
def _code_points() -> tuple[str, str]:
    """Every code point as cues compare it, and its sort: `_WORD`, white space, `OTHER` or none at all."""
    everything = "".join(map(chr, _ALL))
    sorts = (
        _INVALID if 0xD800 <= ord(c) < 0xE000
        else _WORD if c.isalnum() or c == "_"
        else OTHER if not c.isspace()
        else "\n" if c == "\n" else " "
        for c in everything
    )  # fmt: skip
    return _same(everything), "".join(sorts)


def _flat(text: str) -> str:
    """As cues see a folded text: a line end is white space."""
    return text.replace("\n", " ")


def _same(text: str) -> str:
    """As cues are compared, with one kind of apostrophe."""
    return plain(text).replace("\u2019", "'")
