"""When a failed call is made again, and after how long. Knows statuses and Retry-After; makes no call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from desist.data.errors import UpstreamError
from desist.proxy.errors import UpstreamReply

__all__ = ["Retries", "may_pass", "retry_after_s"]

_FIRST_S = 0.1
_LONGEST_S = 5.0  # a server that asks for more has its answer told to the client, who may wait
_STATUSES = frozenset({408, 429})


def may_pass(error: UpstreamError) -> bool:
    """Whether the same call may work a little later: no connection, 408, 429 or 5xx.

    A server that was too late (504 of our own) has had its time.
    """
    if isinstance(error, UpstreamReply):
        return error.status in _STATUSES or (error.status or 0) >= 500
    return bool(getattr(error, "unanswered", False))


def retry_after_s(value: str | None, now: Callable[[], float]) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or as a date; None: it says nothing."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now())
    except (TypeError, ValueError):
        return None


class Retries:
    """The tries that one call has left. Waits double from 0.1 s, each with up to half of it more, drawn."""

    def __init__(
        self, times: int, now: Callable[[], float], draw: Callable[[], float] = random.random
    ) -> None:
        self._left, self._now, self._draw = times, now, draw
        self._wait_s = _FIRST_S
        self.made = 0

    async def pause(self, error: UpstreamError, *, begun: bool = False) -> bool:
        """Wait and say True where the call should be made again after `error`; else False at once.

        `begun`: the answer had begun, but nothing of it was handed on: one that broke off may be had anew.
        """
        broke = begun and (error.status or 0) >= 500 and error.status != 504
        if self._left <= 0 or not (broke or may_pass(error)):
            return False
        asked = retry_after_s(error.retry_after, self._now) if isinstance(error, UpstreamReply) else None
        if asked is not None and asked > _LONGEST_S:
            return False
        wait_s = max(self._wait_s * (1 + self._draw() / 2), asked or 0.0)
        self._left -= 1
        self._wait_s = min(_LONGEST_S, 2 * self._wait_s)
        self.made += 1
        await asyncio.sleep(wait_s)
        return True
