"""One request that the plugin was told of, while it runs: its events and the proxy's own view of them.

Knows the joined events and the ward of a remote decision; nothing of HTTP or text.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.proxy.engines.vllm.joined import Joined
from desist.proxy.engines.vllm.outcome import Heard
from desist.proxy.engines.vllm.remote import Ward
from desist.proxy.engines.vllm.wire import Closed, Identity, Stopped

__all__ = ["Followed"]


@dataclass(slots=True, eq=False)
class Followed:
    """A request of one choice. `ended`: its stream came to its end, so that its last event was waited for."""

    request_id: str
    key: str
    joined: Joined
    ward: Ward | None
    closed: Closed | None = None
    ended: bool = False

    @property
    def identity(self) -> Identity:
        return Identity(self.key)

    @property
    def stopped(self) -> Stopped | None:
        """The stop, if it has come and was not blocked afterwards."""
        stopped, blocked = self.joined.stopped(self.identity), self.joined.blocked(self.identity)
        return None if stopped is None or (blocked and blocked[-1].n > stopped.n) else stopped

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
        return Heard(*heard, ward.scores, ward.decisions, ward.shadow, ward.failure)
