"""The kill switch: no request uses a mode above the one it stands at. Needs no restart of anything.

Knows two hands on one switch, an operator's call and a file; the lower of the two holds. New requests obey
at once (`control` reads `cap`), and an engine that can (`set_cap`) stops stopping those that run. Does not
know who may turn it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, cast, get_args

from desist.controller.core import Mode
from desist.data.errors import ControlError, DesistError
from desist.data.jsonl import atomic_file
from desist.proxy.access.tenants import lower_mode
from desist.proxy.telemetry.metrics import Metrics

__all__ = ["ModeSwitch", "read_mode_file"]

log = logging.getLogger(__name__)
_LONGEST = 64


def read_mode_file(path: Path) -> Mode:
    """The mode that the file holds; a missing file holds nothing back, an empty one is shadow.

    Raises `ControlError` for anything else.
    """
    try:
        text = path.read_bytes()[:_LONGEST].decode("ascii", "replace").strip().lower()
    except FileNotFoundError:
        return "active"
    except OSError as error:
        raise ControlError(f"the mode file {path} cannot be read: {error.strerror}.") from error
    if text not in ("", *get_args(Mode)):
        raise ControlError(
            f"the mode file {path} holds {text!r}. Write off, shadow or active into it; empty means shadow."
        )
    return cast(Mode, text) if text else "shadow"


def _write(path: Path, mode: Mode) -> None:
    with atomic_file(path) as file:
        file.write(f"{mode}\n".encode())


class ModeSwitch:
    """The switch of one app. `path`: the file that is followed (None: there is none)."""

    def __init__(self, engine: Any, metrics: Metrics, path: Path | None) -> None:
        self._engine, self._metrics, self._path = engine, metrics, path
        self._asked: Mode = "active"
        self._filed: Mode = "active"
        self._applied: Mode = "active"
        self._file_failure: str | None = None
        self._engine_failure: str | None = None
        self.look_at_file()

    @property
    def failure(self) -> str | None:
        """What of the switch does not work now."""
        return self._file_failure or self._engine_failure

    @property
    def cap(self) -> Mode:
        """The highest mode that requests may use now."""
        return lower_mode(self._asked, self._filed)

    def follow(self, path: Path | None) -> None:
        """Look at another file from now on."""
        if path != self._path:
            self._path, self._filed, self._file_failure = path, "active", None
            self.look_at_file()

    def look_at_file(self) -> None:
        """Take over what the file says. One that cannot be understood is a hand that fell: shadow."""
        if self._path is None:
            return
        try:
            filed, failure = read_mode_file(self._path), None
        except ControlError as error:
            filed, failure = lower_mode(self._filed, "shadow"), str(error)
        if failure is not None and failure != self._file_failure:
            log.error("%s Until then no mode is above %s.", failure, filed)
        self._filed, self._file_failure = filed, failure

    @property
    def asked(self) -> Mode:
        """What operators' calls hold it at, the file apart."""
        return self._asked

    async def obey(self, mode: Mode) -> None:
        """An operator's call that another worker has taken; the file may have been written for it."""
        self._asked = mode
        await asyncio.to_thread(self.look_at_file)
        await self.apply()

    async def turn(self, mode: Mode) -> bool:
        """An operator's call. Whether it outlives this process: it is written to the file, if there is one.

        Raises `ControlError` where the file cannot be written: the switch is turned all the same.
        """
        self._asked = mode
        written = False
        if self._path is not None:
            self._filed = mode
            try:
                await asyncio.to_thread(_write, self._path, mode)
                written = True
                self._asked = "active"  # the file says it, to others too
            except OSError as error:
                await self.apply()
                raise ControlError(
                    f"the mode is {self.cap} here, but {self._path} cannot be written: {error.strerror}. "
                    "Whoever else follows that file does not know of it, nor will the next start."
                ) from error
        await self.apply()
        return written

    async def apply(self) -> None:
        """Let the engine know. One that fails to obey is told of and asked again the next time."""
        cap = self.cap
        self._metrics.tell_cap(cap)
        if cap == self._applied:
            return
        if self._engine_failure is None:
            log.warning("the kill switch stands at %s (was %s)", cap, self._applied)
        if (set_cap := getattr(self._engine, "set_cap", None)) is not None:
            try:
                await set_cap(cap)
            except DesistError as error:
                told = f"the engine's running requests may go on in their mode: {error}"
                if told != self._engine_failure:
                    log.error("%s", told)
                self._engine_failure = told
                return
        self._applied, self._engine_failure = cap, None

    def detail(self) -> dict[str, Any] | None:
        """For /readyz: where it stands and who holds it there; None while nothing is held back."""
        if self.cap == "active" and self.failure is None:
            return None
        told: dict[str, Any] = {"cap": self.cap, "operator": self._asked, "file": self._filed}
        return told if self.failure is None else told | {"failure": self.failure}
