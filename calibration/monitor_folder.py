"""The folder in which monitoring survives a kill: one small file a state, and one file of audits.

A state takes the place of the one before by a rename, so that it is whole whenever the process is killed;
audits are appended line by line, and a line that a kill cut short is left out. What was acknowledged is
there. (A power cut may take back what the system had not yet written to its disk.) One process writes at a
time; others may read beside it. Does not know what is written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from desist.data.errors import CalibrationError

__all__ = ["MonitorFolder"]

_VERSION = 1
_AUDITS = "audits.jsonl"


class MonitorFolder:
    """An open folder. `write` False: for readers beside the process that writes.

    Raises CalibrationError: not there (readers), no folder, another writer.
    """

    def __init__(self, path: str | os.PathLike[str], *, write: bool = True) -> None:
        self.path = Path(path)
        self._lock = self._log = -1
        if write:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as failure:
                raise CalibrationError(f"{self.path} can be no folder: {failure}. Name another.") from failure
            self._lock = self._locked()
        elif not self.path.is_dir():
            raise CalibrationError(f"{self.path} is not there. Name the folder given as monitor.state.")

    def load(self, name: str) -> dict[str, Any] | None:
        """A saved state; None where there is none. Raises CalibrationError for one that cannot be read."""
        place = self._place(name)
        try:
            found = json.loads(place.read_bytes())
            version = found.pop("version")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError, KeyError) as failure:
            raise CalibrationError(
                f"{place} is no monitoring state: {failure}. Move it away to begin anew."
            ) from failure
        if version != _VERSION:
            raise CalibrationError(
                f"{place} has version {version}, this desist reads {_VERSION}. Move it away to begin anew."
            )
        return dict(found)

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Put a state in the place of the one before. Done when this returns."""
        self._require_writer()
        place = self._place(name)
        part = place.with_suffix(".part")
        part.write_bytes(json.dumps({"version": _VERSION, **state}, separators=(",", ":")).encode())
        part.replace(place)

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to the audits. Done when this returns."""
        self._require_writer()
        if self._log < 0:
            self._log = os.open(self.path / _AUDITS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._log).st_size
            if size and os.pread(self._log, 1, size - 1) != b"\n":
                os.write(self._log, b"\n")  # the line that was cut short ends here
        os.write(self._log, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """The audit lines, in their order; none before the first. One that was cut short is left out."""
        try:
            file = (self.path / _AUDITS).open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict):
                    yield found

    def close(self) -> None:
        for handle in (self._log, self._lock):
            if handle >= 0:
                os.close(handle)
        self._lock = self._log = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, name: str) -> Path:
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        if plain != name:
            plain = f"{plain[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return self.path / f"{plain}.json"

    def _require_writer(self) -> None:
        if self._lock < 0:
            raise CalibrationError(f"{self.path} was opened for reading, or is closed.")

    def _locked(self) -> int:
        """The writer's lock, which the system takes back when the process ends, however it ends."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(handle)
            raise CalibrationError(
                f"{self.path} is written by another process. Give each proxy a folder of its own."
            ) from failure
        return handle
