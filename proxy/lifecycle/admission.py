"""Who is served now: places, a queue in order of arrival, and the end of it all when the process is to stop.

Knows counts and time; nothing of HTTP, bodies or engines. A request takes a place before its generation
begins and leaves it at the end of everything. `drain` refuses newcomers and those that wait; `expire` ends
the rest.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from desist.proxy.errors import ApiError
from desist.proxy.lifecycle.lifeline import Lifeline

__all__ = ["Admission", "Place"]

_LONGEST_RETRY_S = 60
_WEIGHT = 0.1  # of the newest request in the mean time of service


class Place:
    """The right to be served, from `Admission.enter` to `leave`."""

    __slots__ = ("_admission", "_began")

    def __init__(self, admission: Admission, began: float) -> None:
        self._admission: Admission | None = admission
        self._began = began

    def leave(self) -> None:
        """Give the place back. More than once is fine."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            admission._left(self._began)


class Admission:
    """At most `limit` requests at once and `queue` waiting, each for `wait_s` seconds at most.

    `told(in_flight, queued)` hears of each change.
    """

    def __init__(
        self, limit: int, queue: int, wait_s: float, told: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        self._limit, self._queue, self._wait_s, self._told = limit, queue, wait_s, told
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lifelines: set[Lifeline] = set()
        self._mean_s = 1.0
        self._empty: asyncio.Event | None = None
        self.in_flight = 0
        self.draining = False

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def free(self) -> bool:
        """Whether `enter` would not wait."""
        return self.in_flight < self._limit and not self._waiting

    def resize(self, limit: int, queue: int, wait_s: float) -> None:
        """Other limits from now on. Who is served or waits already stays."""
        self._limit, self._queue, self._wait_s = limit, queue, wait_s
        while self._waiting and self.in_flight < self._limit:
            self.in_flight += 1
            self._pass_on()

    async def enter(self) -> Place:
        """A place, at once or when one is free. Raises `ApiError`: 429 queue full, 503 waited too long or
        ending."""
        loop = asyncio.get_running_loop()
        if self.draining:
            raise self._ending()
        if self.free:
            self._take()
            return Place(self, loop.time())
        if len(self._waiting) >= self._queue:
            raise ApiError(
                429,
                f"{self.in_flight} requests are being served and {self.queued} wait: the limits "
                "(limits.max_in_flight, limits.max_queue) are reached. Try again later, or raise them.",
                code="overloaded",
                headers={"Retry-After": str(self._retry_s())},
            )
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._tell()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()  # the place came while the wait was given up
            elif turn in self._waiting:
                self._waiting.remove(turn)
                self._tell()
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503,
                    f"no place became free within {self._wait_s:g} s (limits.queue_s). Try again later.",
                    code="overloaded",
                    headers={"Retry-After": str(self._retry_s())},
                ) from error
            raise
        return Place(self, loop.time())

    def watch(self, lifeline: Lifeline) -> None:
        """Let `expire` end this request too, until `forget`."""
        self._lifelines.add(lifeline)

    def forget(self, lifeline: Lifeline) -> None:
        self._lifelines.discard(lifeline)

    def drain(self) -> None:
        """Refuse whoever comes from now on, and whoever still waits."""
        self.draining = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(self._ending())
        self._tell()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nobody is served any more, for `timeout_s` seconds at most; whether that came."""
        self._empty = asyncio.Event()
        if not self.in_flight:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def expire(self) -> None:
        """End everything that is still served, with an error that says why."""
        for lifeline in list(self._lifelines):
            lifeline.end(self._ending())

    def _ending(self) -> ApiError:
        return ApiError(
            503,
            "this server is shutting down. Send the request again: another one, or its successor, serves it.",
            code="shutting_down",
            headers={"Retry-After": "1", "Connection": "close"},
        )

    def _retry_s(self) -> int:
        """When a place is likely: the queue's length times the mean time of service, over the places."""
        expected = (self.queued + 1) * self._mean_s / self._limit
        return max(1, min(_LONGEST_RETRY_S, math.ceil(expected)))

    def _take(self) -> None:
        self.in_flight += 1
        self._tell()

    def _left(self, began: float) -> None:
        elapsed = asyncio.get_running_loop().time() - began
        self._mean_s += _WEIGHT * (elapsed - self._mean_s)
        self._pass_on()

    def _pass_on(self) -> None:
        """A place is free: the one who waits longest has it, or nobody."""
        while self._waiting and self.in_flight <= self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._tell()
                return
        self.in_flight -= 1
        self._tell()
        if not self.in_flight and self._empty is not None:
            self._empty.set()

    def _tell(self) -> None:
        self._told(self.in_flight, len(self._waiting))
