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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desist.proxy.errors import ApiError
from desist.proxy.lifecycle.lifeline import Lifeline

if TYPE_CHECKING:  # it needs a Unix
    from desist.proxy.lifecycle.shared_places import SharedPlaces

__all__ = ["Admission", "Place"]

_LONGEST_RETRY_S = 60
_LOOK_S = 0.01  # between two looks for a place that another process gave back
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


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """One that waits. `came`: when, on the loop's clock."""

    ready: asyncio.Future[None]
    came: float


class Admission:
    """At most `limit` requests at once and `queue` waiting, each for `wait_s` seconds at most.

    `told(in_flight, queued)` hears of each change. `places`: what other processes take too, so that the
    limits hold for all together (None: this one is alone).
    """

    def __init__(
        self,
        limit: int,
        queue: int,
        wait_s: float,
        told: Callable[[int, int], None] = lambda *_: None,
        places: SharedPlaces | None = None,
    ) -> None:
        self._limit, self._queue, self._wait_s, self._told = limit, queue, wait_s, told
        self._places = places
        self._waiting: deque[_Turn] = deque()
        self._looking: asyncio.TimerHandle | None = None
        self._noted = False  # whether others know of somebody who waits here
        self._lifelines: set[Lifeline] = set()
        self._mean_s = 1.0
        self._empty: asyncio.Event | None = None
        self.in_flight = 0  # of this process
        self.draining = False

    @property
    def queued(self) -> int:
        """Requests of this process that wait."""
        return len(self._waiting)

    @property
    def free(self) -> bool:
        """Whether `enter` would not wait, as it stands now."""
        served, waiting = self._all()
        return served < self._limit and not waiting

    def resize(self, limit: int, queue: int, wait_s: float) -> None:
        """Other limits from now on. Who is served or waits already stays."""
        self._limit, self._queue, self._wait_s = limit, queue, wait_s
        self._serve()

    async def enter(self) -> Place:
        """A place, at once or when one is free. Raises `ApiError`: 429 queue full, 503 waited too long or
        ending."""
        loop = asyncio.get_running_loop()
        if self.draining:
            raise self._ending()
        came = loop.time()
        if not self._waiting and self._take(came):
            self._tell()
            return Place(self, came)
        served, waiting = self._all()
        if waiting >= self._queue:
            raise ApiError(
                429,
                f"{served} requests are being served and {waiting} wait: the limits "
                "(limits.max_in_flight, limits.max_queue) are reached. Try again later, or raise them.",
                code="overloaded",
                headers={"Retry-After": str(self._retry_s())},
            )
        turn = _Turn(loop.create_future(), came)
        self._waiting.append(turn)
        self._tell()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn.ready
        except BaseException as error:
            if turn.ready.done() and not turn.ready.cancelled() and turn.ready.exception() is None:
                self._give()  # the place came while the wait was given up
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._serve()
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
            if not turn.ready.done():
                turn.ready.set_exception(self._ending())
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
        expected = (self._all()[1] + 1) * self._mean_s / self._limit
        return max(1, min(_LONGEST_RETRY_S, math.ceil(expected)))

    def _all(self) -> tuple[int, int]:
        """(served, waiting), of all processes."""
        places = self._places
        return (self.in_flight, self.queued) if places is None else (places.served, places.waiting)

    def _take(self, came: float) -> bool:
        taken = self.in_flight < self._limit if self._places is None else self._places.take(self._limit, came)
        self.in_flight += taken
        return taken

    def _give(self) -> None:
        self.in_flight -= 1
        if self._places is not None:
            self._places.give()

    def _left(self, began: float) -> None:
        elapsed = asyncio.get_running_loop().time() - began
        self._mean_s += _WEIGHT * (elapsed - self._mean_s)
        self._give()
        self._serve()

    def _serve(self) -> None:
        """Give the free places to those who wait longest."""
        while self._waiting:
            turn = self._waiting[0]
            if turn.ready.done():  # it was given up
                self._waiting.popleft()
            elif self._take(turn.came):
                self._waiting.popleft()
                turn.ready.set_result(None)
            else:
                break
        self._tell()
        if not self.in_flight and self._empty is not None:
            self._empty.set()

    def _look(self) -> None:
        """Another process may have given a place back."""
        self._looking = None
        self._serve()

    def _tell(self) -> None:
        self._told(self.in_flight, self.queued)
        if self._places is None:
            return
        if self._waiting or self._noted:
            self._places.note(self.queued, self._waiting[0].came if self._waiting else 0.0)
            self._noted = bool(self._waiting)
        if self._waiting and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
