"""A boundary detector taken through all that it can meet: every state with every kind of token.

The detector itself is asked, so there are no second rules. Knows states (`reduced`) and kinds of tokens; no
numbers, and no vocabulary once the kinds are made.
"""

from __future__ import annotations

import codecs
import enum
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from desist.controller.boundaries import BoundaryDetector
from desist.controller.holdoff import SPECIAL
from desist.controller.reduced import AFTER_TEXT, BEFORE, CLOSED, OPENED, Reduced
from desist.controller.tag_rules import LETTERS, MOST_BLANKS, TagRules
from desist.controller.thinking import BLANK
from desist.controller.token_signatures import Signatures
from desist.controller.vocabulary import Vocabulary
from desist.data.errors import ControlError

__all__ = ["Explored", "Explorer", "Kind", "TokenFlag"]

_MOST_FOLLOWING = 3  # bytes of a character after its first


class TokenFlag(enum.IntFlag):
    """What reading a token means.

    BOUNDARY: it completes a boundary. THINKING: thinking is open after it. COUNTED: it is reasoning.
    WHOLE: it ends neither inside a character nor where a tool call may begin. ZONE: it is read as reasoning
    and may open or close a hold-off zone.
    """

    BOUNDARY = 1
    THINKING = 2
    COUNTED = 4
    WHOLE = 8
    ZONE = 16


class Kind(NamedTuple):
    """What a token can do: `data` does what the token's own bytes do, after any others."""

    tag: int | None  # its id, where that matters
    data: bytes
    zone: bool
    head: str = ""  # how it begins, as far as that tells an answer, or a tool call, from white space

    @classmethod
    def of(
        cls,
        token_id: int,
        vocabulary: Vocabulary,
        tags: Collection[int],
        signatures: Signatures,
        rules: TagRules,
    ) -> Kind:
        """The kind of one token."""
        data = vocabulary.token_bytes(token_id)
        zone = SPECIAL.search(data.decode(errors="replace")) is not None
        if token_id in tags:
            return cls(token_id, data, zone)
        start = 0  # what may belong to a character that was begun before is left as it is
        while start < min(len(data), _MOST_FOLLOWING) and _follows(data[start]):
            start += 1
        head = _head(data.decode("latin-1"), rules)
        return cls(None, data[:start] + _shortened(data[start:], signatures, joined=start > 0), zone, head)

    @property
    def begins(self) -> bool:
        """Whether it is text that cannot belong to a character begun before, and is some."""
        return self.tag is None and self.data != b"" and not _follows(self.data[0])


class Explored(NamedTuple):
    """`next`, `flags` [N, C]: a row for each state, a column for each kind. `numbers`: the states' rows."""

    next: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    numbers: dict[Reduced, int]


class _Row(NamedTuple):
    next: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, width: int) -> _Row:
        return cls(np.zeros(width, np.int32), np.zeros(width, np.uint8))

    def copy(self) -> _Row:
        return _Row(self.next.copy(), self.flags.copy())


class _Group(NamedTuple):
    data: bytes
    columns: npt.NDArray[np.int64]


class Explorer:
    """Fills the tables `next` and `flags`, a row for each state, a column for each kind."""

    def __init__(self, detector: BoundaryDetector, signatures: Signatures, kinds: tuple[Kind, ...]) -> None:
        self._detector = detector
        self._signatures = signatures
        self._rules = tag_rules(detector)
        self._kinds = kinds
        self._known: dict[tuple[Reduced, bytes], tuple[Reduced, TokenFlag]] = {}
        self._numbers = {state: n for n, state in enumerate((BEFORE, CLOSED, OPENED, AFTER_TEXT))}
        self._queue = list(self._numbers)
        self._rows: dict[Reduced, _Row] = {}
        self._zones = np.array([kind.zone for kind in kinds])
        self._tags = [column for column, kind in enumerate(kinds) if kind.tag is not None]
        text = [column for column, kind in enumerate(kinds) if kind.tag is None]
        self._blank = np.array([column for column in text if not kinds[column].head.strip()], dtype=np.int64)
        self._heads = {
            head: np.array([column for column in text if kinds[column].head == head])
            for head in {kinds[column].head for column in text}
        }
        self._all = self._grouped(b"", text)
        self._by_letter: dict[str, list[_Group]] = {}
        for group in self._all:
            first = codecs.utf_8_decode(group.data, "replace", False)[0][:1]
            self._by_letter.setdefault(first, []).append(group)
        self._following = [column for column in text if not kinds[column].begins]
        self._after: dict[bytes, list[_Group]] = {}

    def explore(self, max_states: int) -> Explored:
        """All states that can be met, breadth first. Raises `ControlError` if more than `max_states` are."""
        rows = []
        for state in self._queue:
            rows.append(self._row(state))
            if len(self._queue) > max_states:
                raise ControlError(
                    f"profile '{self._detector.profile.name}' leads to more than {max_states} states in this "
                    "vocabulary. Give fewer or shorter cues, or a larger max_states, or find boundaries on "
                    "the host."
                )
        return Explored(
            np.stack([row.next for row in rows]), np.stack([row.flags for row in rows]), self._numbers
        )

    def _row(self, state: Reduced) -> _Row:
        known = self._rows.get(state)
        if known is not None:
            return known
        row, groups = self._begun(state)
        if state.asked is not None:
            self._answer(row, state.asked)
        for column in () if state == CLOSED else self._tags:
            self._fill(row, column, *self._push(state, self._kinds[column].tag, self._kinds[column].data))
        before = state._replace(pending=b"")
        for data, columns in groups:
            reached = self._known.get((before, data))
            if reached is None:
                reached = self._known[before, data] = self._push(before, None, data)
            self._fill(row, columns, *reached)
        asking = row.flags & (TokenFlag.THINKING | TokenFlag.WHOLE).value == TokenFlag.THINKING.value
        moved = self._zones & ((row.flags & TokenFlag.COUNTED.value > 0) | asking)
        row.flags[moved] |= np.uint8(TokenFlag.ZONE)
        self._rows[state] = row
        return row

    def _begun(self, state: Reduced) -> tuple[_Row, list[_Group]]:
        """A row as far as it is that of a simpler state, and the texts for which it is not."""
        if state in (CLOSED, BEFORE):
            row = _Row.of(len(self._kinds))
            self._fill(row, slice(None), CLOSED, TokenFlag.WHOLE)
            if state == BEFORE:  # only white space leaves it open whether thinking begins
                self._fill(row, self._blank, BEFORE, TokenFlag.WHOLE)
            return row, []
        if state.asked is not None:
            return self._row(state._replace(asked=None)).copy(), []
        if state.pending:
            # A character that does not go on is none, which is as good as any that is in no word.
            if state.pending not in self._after:
                self._after[state.pending] = self._grouped(state.pending, self._following)
            return self._row(AFTER_TEXT).copy(), self._after[state.pending]
        if len(state.tail) > 1:
            # A letter that no cue goes on with leaves nothing of the cues but whether a word stood there.
            left = Reduced(self._signatures.before(state.tail), line=state.line)
            letters = self._signatures.next_letters(state.tail)
            groups = (self._by_letter.get(letter, []) for letter in ("", *letters))
            return self._row(left).copy(), [group for some in groups for group in some]
        return _Row.of(len(self._kinds)), self._all

    def _answer(self, row: _Row, asked: str) -> None:
        """What tokens do after the mark of a tool call, in the row of what they do as text."""
        for head, columns in self._heads.items():
            calls = self._rules.calls(asked + head)
            if calls:
                self._fill(row, columns, CLOSED, TokenFlag.WHOLE)
            elif calls is None:
                for column in columns:
                    read = self._queue[row.next[column]]
                    after = asked + head
                    self._fill(row, int(column), read._replace(asked=after), TokenFlag.THINKING)

    def _grouped(self, pending: bytes, columns: Iterable[int]) -> list[_Group]:
        """Kinds by what they do after these first bytes of a character."""
        groups: dict[bytes, list[int]] = {}
        for column in columns:
            data = _shortened(pending + self._kinds[column].data, self._signatures)
            groups.setdefault(data, []).append(column)
        return [_Group(data, np.array(some)) for data, some in groups.items()]

    def _fill(
        self, row: _Row, columns: int | slice | npt.NDArray[Any], reached: Reduced, flags: TokenFlag
    ) -> None:
        number = self._numbers.setdefault(reached, len(self._queue))
        if number == len(self._queue):
            self._queue.append(reached)
        row.next[columns], row.flags[columns] = number, flags

    def _push(self, state: Reduced, token_id: int | None, data: bytes) -> tuple[Reduced, TokenFlag]:
        detector = self._detector
        detector._state = now = state.restored(self._rules.tool)
        found = detector._read(token_id, data)
        flags = TokenFlag(0)
        if found is not None:
            flags |= TokenFlag.BOUNDARY
        if now.thinking:
            flags |= TokenFlag.THINKING
        if now.position:
            flags |= TokenFlag.COUNTED
        if detector.whole:
            flags |= TokenFlag.WHOLE
        return Reduced.of(now, self._signatures, self._rules.tool), flags


def tag_rules(detector: BoundaryDetector) -> TagRules:
    """The detector's rules. Raises `ControlError` where these are no tags."""
    rules = detector._rules
    if not isinstance(rules, TagRules):
        raise ControlError(
            f"profile '{detector.profile.name}' writes channels, which an automaton cannot follow. "
            "Find boundaries on the host."
        )
    return rules


def _head(text: str, rules: TagRules) -> str:
    """What stands for the beginning of a token, as far as it tells an answer or a call from white space."""
    body = text.lstrip(BLANK)
    blanks = " " * min(len(text) - len(body), MOST_BLANKS + 1)
    if rules.tool is None or rules.call == "any":
        return blanks[:1] + "." * bool(body)
    if not body.startswith("<"):
        return blanks + _sort(body[:1])
    return f"{blanks}<{_sort(body[1:2])}"


def _sort(character: str) -> str:
    """The character that stands for all that are the same to `TagRules.calls`."""
    if character in {"", "<"}:
        return character.replace("<", ".")
    return "a" if character in LETTERS else "{" if character in "{[" else "."


def _follows(byte: int) -> bool:
    """Whether the byte is not the first of a character."""
    return byte & 0xC0 == 0x80


def _shortened(data: bytes, signatures: Signatures, *, joined: bool = False) -> bytes:
    """Bytes that do what these do after whole characters. `joined`: the last is in the same token."""
    text, used = codecs.utf_8_decode(data, "replace", False)
    pending = data[used:]
    return signatures.squeeze(text, joined=joined).encode() + (
        signatures.unfinished(pending)[0] if pending else b""
    )
