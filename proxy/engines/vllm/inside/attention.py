"""Whose next row must be looked at: most tokens are plain words, and most steps hold nothing else.

Knows request ids and tokens; no rows, no decisions. A row that was passed over is caught up with when one
comes that matters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Protocol

__all__ = ["Attention"]

_NEVER = 1 << 62


class _Kind(Enum):
    PLAIN = auto()  # says nothing, and is not blank
    BLANK = auto()  # says nothing
    LINE = auto()  # ends a line, and nothing else
    SAYS = auto()


class Words(Protocol):
    """What tokens can do, as the controller's lexicon tells it."""

    def inert(self, token_id: int) -> str | None:
        """The text of a token that can be no boundary and change no zone, wherever it stands."""

    def ends_line(self, token_id: int) -> bool:
        """Whether it is a line end, which is a boundary only where the line before it is blank."""


class Attention:
    """A request is due from the token that says something until its row has come, which a preemption may put
    off; or for each row, where `follow` says so.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._kinds: dict[int, _Kind] = {}  # of the tokens met so far
        self._heard: set[str] = set()
        self._ended: set[str] = set()  # requests whose line may be blank so far
        self._due: set[str] = set()
        self._close: set[str] = set()  # each of their rows is looked at
        self._alarms: dict[str, int] = {}
        self._step, self._next = 0, _NEVER

    @property
    def wanted(self) -> Collection[str]:
        """The requests whose next row must be looked at."""
        return self._due | self._close if self._close else self._due

    def follow(self, request_id: str, rows: int | None) -> None:
        """Look at each row of a request after `rows` more; None: only at those that say something."""
        if request_id not in self._heard:
            self._heard.add(request_id)
            self._ended.add(request_id)  # the prompt may end with a line end
        self._alarms.pop(request_id, None)
        if rows is not None and rows <= 0:
            self._close.add(request_id)
            return
        self._close.discard(request_id)
        if rows is not None:
            alarm = self._alarms[request_id] = self._step + rows
            self._next = min(self._next, alarm)

    def ignore(self, request_id: str) -> None:
        """Nothing that a request says matters any more."""
        self._heard.discard(request_id)
        self._ended.discard(request_id)
        self._due.discard(request_id)
        self._close.discard(request_id)
        self._alarms.pop(request_id, None)

    def seen(self, request_id: str) -> None:
        """The request's row has been looked at."""
        self._due.discard(request_id)

    def sampled(self, request_ids: Sequence[str], token_ids: Sequence[Sequence[int]]) -> None:
        """A step has sampled these tokens (none for a request in its prefill); the next rows read them."""
        kinds, ended = self._kinds, self._ended
        for request_id, ids in zip(request_ids, token_ids, strict=False):
            if not ids:
                continue
            kind = kinds.get(ids[-1]) or self._kind(ids[-1])
            if kind is _Kind.PLAIN:
                if ended:
                    ended.discard(request_id)
            elif kind is not _Kind.BLANK and request_id in self._heard:
                if kind is _Kind.SAYS or request_id in ended:
                    self._due.add(request_id)
                ended.add(request_id)
        self._step += 1
        if self._step >= self._next:
            self._ring()

    def _kind(self, token_id: int) -> _Kind:
        """What a token that was not met before can do."""
        text = self._words.inert(token_id)
        if text is not None:
            kind = _Kind.BLANK if text.isspace() else _Kind.PLAIN
        else:
            kind = _Kind.LINE if self._words.ends_line(token_id) else _Kind.SAYS
        self._kinds[token_id] = kind
        return kind

    def _ring(self) -> None:
        """A request makes one token a step at most, so that no alarm is late."""
        over = [request_id for request_id, alarm in self._alarms.items() if alarm <= self._step]
        for request_id in over:
            del self._alarms[request_id]
            self._close.add(request_id)
        self._next = min(self._alarms.values(), default=_NEVER)
