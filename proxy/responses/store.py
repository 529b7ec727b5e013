"""Keeps responses for `previous_response_id` and for reading by id: in memory, bounded, each for its own key.

Knows sizes, times and owners. Nothing is written anywhere: after a restart none of it is known. With several
workers the parent's memory holds it for all (`lifecycle.team_hub`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

__all__ = ["Kept", "KeptHere", "ResponseStore", "Responses", "decoded", "encoded"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A response, and the items of the conversation before it (instructions are not among them)."""

    response: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items up to now."""
        return [*self.items, *self.response["output"]]


def encoded(kept: Kept) -> bytes:
    return msgspec.json.encode({"response": kept.response, "items": kept.items})


def decoded(data: bytes) -> Kept:
    held = msgspec.json.decode(data)
    return Kept(held["response"], held["items"])


class Responses(Protocol):
    """Where a worker keeps responses. `keeps`: whether it does at all."""

    keeps: bool

    def put(self, owner: bytes, kept: Kept) -> None:
        """Keep a response. One that alone exceeds the size is not kept."""

    async def get(self, owner: bytes, identity: str) -> Kept | None:
        """The response of this id, if it is there and `owner`'s."""

    async def delete(self, owner: bytes, identity: str) -> bool:
        """Forget the response; False if it is not there, or not `owner`'s."""


class KeptHere:
    """Responses in this process, the only one."""

    def __init__(self, store: ResponseStore) -> None:
        self._store, self.keeps = store, store.keeps

    def put(self, owner: bytes, kept: Kept) -> None:
        self._store.put(owner, str(kept.response["id"]), encoded(kept))

    async def get(self, owner: bytes, identity: str) -> Kept | None:
        data = self._store.get(owner, identity)
        return None if data is None else decoded(data)

    async def delete(self, owner: bytes, identity: str) -> bool:
        return self._store.delete(owner, identity)


@dataclass(frozen=True, slots=True)
class _Entry:
    owner: bytes = field(repr=False)
    data: bytes = field(repr=False)
    until: float


class ResponseStore:
    """At most `limit` responses and `limit_bytes` of them, each for `keep_s` seconds; the oldest go first."""

    def __init__(
        self, limit: int, limit_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._limit_bytes, self._keep_s, self._clock = limit, limit_bytes, keep_s, clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0

    @property
    def keeps(self) -> bool:
        return self._limit > 0 and self._limit_bytes > 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, owner: bytes, identity: str, data: bytes) -> None:
        """Keep a response. One that alone exceeds the size is not kept."""
        if not self.keeps or len(data) > self._limit_bytes:
            return
        self._forget(identity)
        self._entries[identity] = _Entry(owner, data, self._clock() + self._keep_s)
        self._bytes += len(data)
        while len(self._entries) > self._limit or self._bytes > self._limit_bytes:
            self._forget(next(iter(self._entries)))

    def get(self, owner: bytes, identity: str) -> bytes | None:
        """The response of this id, if it is there and `owner`'s."""
        self._expire()
        entry = self._entries.get(identity)
        return None if entry is None or entry.owner != owner else entry.data

    def delete(self, owner: bytes, identity: str) -> bool:
        """Forget the response; False if it is not there, or not `owner`'s."""
        self._expire()
        entry = self._entries.get(identity)
        if entry is None or entry.owner != owner:
            return False
        self._forget(identity)
        return True

    def _expire(self) -> None:
        """All are kept equally long, so the oldest are those whose time is over."""
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).until <= now:
            self._forget(next(iter(self._entries)))

    def _forget(self, identity: str) -> None:
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self._bytes -= len(entry.data)
