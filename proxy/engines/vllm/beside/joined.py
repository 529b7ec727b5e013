"""The events of one client key, put together: what each choice of the request was told, and what is missing.

Knows numbers and order; no sockets. Lives on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from desist.proxy.engines.vllm.wire import Blocked, Closed, Identity, Opened, Scored, Stopped

__all__ = ["Joined", "RequestEvent"]

logger = logging.getLogger(__name__)
RequestEvent = Opened | Scored | Stopped | Blocked | Closed


@dataclass(slots=True)
class _Choice:
    """What came for one identity. `next_n`: the number expected next."""

    source: Hashable = None
    opened: Opened | None = None
    scored: list[Scored] = field(default_factory=list)
    stopped: Stopped | None = None
    blocked: list[Blocked] = field(default_factory=list)
    closed: Closed | None = None
    next_n: int = 0
    lost: int = 0
    broken: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Joined:
    """The events of one key, by identity (prompt, choice). Made by `EventStream.expect`.

    As a context manager it releases itself at the end.
    """

    def __init__(
        self,
        key: str,
        release: Callable[[str], None],
        listen: Callable[[RequestEvent], None] | None,
        keep_hidden: bool,
    ) -> None:
        self.key = key
        self._release, self._listen, self._keep_hidden = release, listen, keep_hidden
        self._choices: dict[Identity, _Choice] = {}
        self._ended = False

    def __enter__(self) -> Joined:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Forget this key: later events of it are nobody's."""
        self._release(self.key)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The choices of which something was heard, in order of prompt and choice."""
        heard = [identity for identity, choice in self._choices.items() if choice.source is not None]
        return tuple(sorted(heard, key=lambda each: (each.prompt, each.choice)))

    def opened(self, identity: Identity) -> Opened | None:
        """The opening event, if it has come."""
        choice = self._choices.get(identity)
        return choice.opened if choice else None

    def scored(self, identity: Identity) -> tuple[Scored, ...]:
        """The boundaries so far, in order; without hidden states unless `keep_hidden` was asked."""
        choice = self._choices.get(identity)
        return tuple(choice.scored) if choice else ()

    def stopped(self, identity: Identity) -> Stopped | None:
        """The stop, if it has come."""
        choice = self._choices.get(identity)
        return choice.stopped if choice else None

    def blocked(self, identity: Identity) -> tuple[Blocked, ...]:
        """Stops that could not be carried out, so far."""
        choice = self._choices.get(identity)
        return tuple(choice.blocked) if choice else ()

    def lost(self, identity: Identity) -> int:
        """Events of this choice that are known to have been lost. Complete only after `closed`."""
        choice = self._choices.get(identity)
        return choice.lost if choice else 0

    def complete(self, identity: Identity) -> bool:
        """Whether every event of this choice has come, from the opening to the end."""
        choice = self._choices.get(identity)
        return (
            choice is not None
            and choice.opened is not None
            and choice.closed is not None
            and choice.lost == 0
        )

    async def closed(self, identity: Identity, timeout_s: float) -> Closed | None:
        """The last event, waited for up to `timeout_s` seconds.

        None where it did not come in time or cannot come: the engine was started again, the key released.
        """
        choice = self._choices.get(identity)
        if choice is None:
            if self._ended:
                return None
            choice = self._choices[identity] = _Choice()
        if choice.closed is None and not choice.over.is_set():
            try:
                await asyncio.wait_for(choice.over.wait(), timeout_s)
            except TimeoutError:
                return None
        return choice.closed

    def take(self, event: RequestEvent, source: Hashable) -> int | None:
        """Take an event from `source`: how many before it were lost; None where it had come already."""
        choice = self._choices.setdefault(event.identity, _Choice())
        if isinstance(event, Opened) and choice.broken:
            choice = self._choices[event.identity] = _Choice()
        lost = self._missing_before(event, choice)
        if lost is None:
            return None
        choice.source = source
        choice.lost += lost
        self._keep(event, choice)
        if self._listen is not None:
            try:
                self._listen(event)
            except Exception:
                logger.exception("a listener to the events of %r failed", self.key)
        return lost

    def broke(self, source: Hashable) -> None:
        """The engine behind `source` was started again: choices that it had not ended will never end."""
        for choice in self._choices.values():
            if choice.source == source and choice.closed is None:
                choice.broken = True
                choice.over.set()

    def end(self) -> None:
        """Nothing more will come. Those who wait are let go."""
        self._ended = True
        for choice in self._choices.values():
            choice.over.set()

    @staticmethod
    def _missing_before(event: RequestEvent, choice: _Choice) -> int | None:
        if choice.closed is not None:
            return None
        if isinstance(event, Opened):
            return None if choice.source is not None else 0
        if event.n < choice.next_n:
            return None
        unopened = choice.source is None  # the opening has no number; it is the first, or it is lost
        return event.n - choice.next_n + unopened

    def _keep(self, event: RequestEvent, choice: _Choice) -> None:
        if isinstance(event, Opened):
            choice.opened = event
            return
        choice.next_n = event.n + 1
        if isinstance(event, Scored):
            whole = self._keep_hidden or event.hidden is None
            choice.scored.append(event if whole else msgspec.structs.replace(event, hidden=None))
        elif isinstance(event, Stopped):
            choice.stopped = event
        elif isinstance(event, Blocked):
            choice.blocked.append(event)
        else:
            choice.closed = event
            choice.over.set()
