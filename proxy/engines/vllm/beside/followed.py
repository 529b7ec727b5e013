"""One request that the plugin was told of, while it runs: its events and the proxy's own view of them.

Knows the joined events and the ward of a decision in the proxy; nothing of HTTP or text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.vllm.beside.joined import Joined, RequestEvent
from desist.proxy.engines.vllm.beside.outcome import Heard
from desist.proxy.engines.vllm.beside.remote import Remote, Ward
from desist.proxy.engines.vllm.beside.subscriber import EventStream
from desist.proxy.engines.vllm.wire import Blocked, Closed, Identity, Scored, Stopped

__all__ = ["Followed", "Observer", "follow"]

Observer = Callable[[GenerationRequest, Scored], None]


@dataclass(slots=True, eq=False)
class Followed:
    """A request of one choice.

    `stopped`: the stop, if it has come and was not blocked afterwards. `ended`: the stream came to its end,
    so that its last event was waited for.
    """

    request_id: str
    key: str
    joined: Joined
    ward: Ward | None = None
    stopped: Stopped | None = None  # asked for at every chunk
    closed: Closed | None = None
    ended: bool = False

    @property
    def identity(self) -> Identity:
        return Identity(self.key)

    async def end(self, wait_s: float) -> Heard:
        """Wait for the last event, `wait_s` seconds at most; everything that was heard."""
        joined, identity, ward = self.joined, self.identity, self.ward
        self.closed = await joined.closed(identity, wait_s)
        self.ended = True
        heard = (
            joined.opened(identity),
            joined.scored(identity),
            self.stopped,
            joined.blocked(identity),
            self.closed,
            joined.lost(identity),
            wait_s,
        )
        if ward is None:
            return Heard(*heard)
        failure = ward.failure if ward.machine is not None else None  # a candidate's is not the request's
        return Heard(*heard, ward.scores, ward.decisions, ward.shadow, failure)


@contextmanager
def follow(
    events: EventStream,
    request: GenerationRequest,
    key: str,
    remote: Remote | None,
    observer: Observer | None,
    live: list[Followed],
) -> Iterator[Followed]:
    """Collect the events of `request` under `key`; while it runs it stands in `live`.

    `remote` scores, and `observer` is told, each of its boundaries.
    """
    identity = Identity(key)
    ward = None if remote is None else remote.watch(identity, request.control)

    def listen(event: RequestEvent) -> None:
        if isinstance(event, Stopped):
            followed.stopped = event
        elif isinstance(event, Blocked):
            followed.stopped = None
        elif isinstance(event, Scored):
            if remote is not None and ward is not None:
                remote.take(ward, event)
            if observer is not None:
                observer(request, event)

    with events.expect(key, listen=listen) as joined:
        followed = Followed(request.request_id, key, joined, ward)
        live.append(followed)
        try:
            yield followed
        finally:
            live.remove(followed)
            if remote is not None and ward is not None:
                remote.settle(ward, followed.stopped, followed.closed, left=not followed.ended)
