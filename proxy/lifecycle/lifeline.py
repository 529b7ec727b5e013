"""Ends one request from outside: when a time limit passes, or when the process has to stop.

Knows one task, three limits and one timer. It cancels the task and turns that cancellation into the error
that it stands for, as `asyncio.timeout` does, but nothing is set up for each chunk: `alive` notes the time,
the timer looks at it when it is due.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from desist.proxy.errors import ApiError, shorten

if TYPE_CHECKING:
    from desist.proxy.settings import Settings

__all__ = ["TIMEOUT_HEADERS", "Lifeline", "TimeLimits", "time_limits"]

TIMEOUT_HEADERS = {
    "total_s": "x-desist-timeout",
    "first_byte_s": "x-desist-first-byte-timeout",
    "idle_s": "x-desist-idle-timeout",
}
_WHAT = {
    "total_s": "the whole answer was not there",
    "first_byte_s": "nothing of an answer was there",
    "idle_s": "nothing more came",
}


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds. `total_s`: from acceptance to the last byte; `first_byte_s`: to the first sign of an answer;
    `idle_s`: between two signs."""

    total_s: float = math.inf
    first_byte_s: float = math.inf
    idle_s: float = math.inf


def time_limits(settings: Settings, headers: Mapping[str, str]) -> TimeLimits:
    """The limits of one request: the client may ask for less than the settings allow, never for more.

    Raises `ApiError` 400 for a header that is no positive number of seconds.
    """
    asked = {name: _seconds(headers, header) for name, header in TIMEOUT_HEADERS.items()}
    upstream = settings.upstream
    asked["total_s"] = min(asked["total_s"], settings.limits.total_s)
    if upstream is not None:
        asked["total_s"] = min(asked["total_s"], upstream.total_s)
        asked["first_byte_s"] = min(asked["first_byte_s"], upstream.first_byte_s)
        asked["idle_s"] = min(asked["idle_s"], upstream.idle_s)
    return TimeLimits(**asked)


def _seconds(headers: Mapping[str, str], name: str) -> float:
    given = headers.get(name)
    if given is None:
        return math.inf
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ApiError(
            400,
            f"the header {name} is {shorten(given)}. Give a positive number of seconds, or leave it out.",
            param=name,
            code="invalid_value",
        )
    return seconds


class Lifeline:
    """Around the work of one request: `async with lifeline:`; in it, the error of `end` is raised.

    Used once, in the task that does the work. `total_s` counts from the making of the object.
    """

    __slots__ = ("_began", "_cancelling", "_error", "_heard", "_limits", "_loop", "_task", "_timer")

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._heard: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._cancelling = 0

    def alive(self) -> None:
        """The engine has just given a sign of life."""
        first = self._heard is None
        self._heard = self._loop.time()
        if first and self._timer is not None:  # from now on another limit may be the next one
            self._timer.cancel()
            self._look()

    def end(self, error: Exception) -> None:
        """Cancel the work; `async with` raises `error` instead. Before or after the work nothing happens."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._error is None or task is None:
            return
        left = task.uncancel()
        if kind is asyncio.CancelledError and left <= self._cancelling:
            raise self._error from error

    def _look(self) -> None:
        """End the work if a limit has passed, else look again when the next one may."""
        now = self._loop.time()
        dues = {"total_s": self._began + self._limits.total_s}
        if self._heard is None:
            dues["first_byte_s"] = self._began + self._limits.first_byte_s
        else:
            dues["idle_s"] = self._heard + self._limits.idle_s
        name = min(dues, key=lambda each: dues[each])
        if dues[name] == math.inf:
            self._timer = None
        elif now >= dues[name]:
            self.end(self._late(name))
        else:
            self._timer = self._loop.call_at(dues[name], self._look)

    def _late(self, name: str) -> ApiError:
        where = "limits.total_s or upstream.total_s" if name == "total_s" else f"upstream.{name}"
        return ApiError(
            504,
            f"{_WHAT[name]} within {getattr(self._limits, name):g} s. Ask for less, or raise the limit: the "
            f"header {TIMEOUT_HEADERS[name]}, and the setting {where}.",
            code="timeout",
        )
