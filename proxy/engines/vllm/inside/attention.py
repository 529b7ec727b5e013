"""Whose next row must be looked at: most tokens are plain words, and most steps hold nothing else.

Knows request ids and tokens; no rows, no decisions. A row that was passed over is caught up with when one
comes that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["Attention"]

_NEVER = 1 << 62


class Attention:
    """`says_nothing`: whether a token can change nothing, wherever it stands.

    A request is due from the token that says something until its row has come, which a preemption may put
    off; or for each row, where `follow` says so.
    """

    def __init__(self, says_nothing: Callable[[int], bool]) -> None:
        self._says_nothing = says_nothing
        self._quiet: set[int] = set()  # tokens known to say nothing
        self._heard: set[str] = set()
        self._due: set[str] = set()
        self._close: set[str] = set()  # each of their rows is looked at
        self._alarms: dict[str, int] = {}
        self._step, self._next = 0, _NEVER

    @property
    def wanted(self) -> Iterable[str]:
        """The requests whose next row must be looked at."""
        return self._due | self._close if self._close else self._due

    def follow(self, request_id: str, rows: int | None) -> None:
        """Look at each row of a request after `rows` more; None: only at those that say something."""
        self._heard.add(request_id)
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
        self._due.discard(request_id)
        self._close.discard(request_id)
        self._alarms.pop(request_id, None)

    def seen(self, request_id: str) -> None:
        """The request's row has been looked at."""
        self._due.discard(request_id)

    def sampled(self, request_ids: Sequence[str], token_ids: Sequence[Sequence[int]]) -> None:
        """A step has sampled these tokens (none for a request in its prefill); the next rows read them."""
        quiet = self._quiet
        for request_id, ids in zip(request_ids, token_ids, strict=False):
            if ids and ids[-1] not in quiet and request_id in self._heard:
                if self._says_nothing(ids[-1]):
                    quiet.add(ids[-1])
                else:
                    self._due.add(request_id)
        self._step += 1
        if self._step >= self._next:
            self._ring()

    def _ring(self) -> None:
        """A request makes one token a step at most, so that no alarm is late."""
        over = [request_id for request_id, alarm in self._alarms.items() if alarm <= self._step]
        for request_id in over:
            del self._alarms[request_id]
            self._close.add(request_id)
        self._next = min(self._alarms.values(), default=_NEVER)
