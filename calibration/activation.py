"""The activation folder: which probe and certificates are in use as a pair, and which were before.

Artefacts are copied in under the hash of their content, so that a pair that was active once can always be
had back. One small JSON file says what is active; it is replaced in one step, and its `number` rises with
every change, so that whoever reads it sees whole states only. Knows files; loads no probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from desist.calibration.certificate import Certificate, load_certificate
from desist.data.errors import CalibrationError
from desist.data.jsonl import atomic_file

__all__ = ["ActivationFolder", "Active", "Pair"]

STATE_FILE = "active.json"
_KEPT = 20  # earlier states that can be had back
_BESIDE = (".estimates.json", ".drift.json")  # what may stand beside a certificate and belongs to it


class Pair(BaseModel):
    """A probe (None: the engine's own) with the certificates made for it. Paths as they can be opened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    probe: Path | None
    certificates: tuple[Path, ...] = Field(min_length=1)
    activated: str
    percent: int = Field(default=100, ge=1, le=100)
    force: bool = False


class Active(BaseModel):
    """What is active: `current` for `current.percent` of requests, the pair before it for the others.

    `history`: earlier pairs, the latest last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    number: int = Field(default=0, ge=0)
    current: Pair | None = None
    history: tuple[Pair, ...] = ()

    @property
    def percent(self) -> int:
        return 100 if self.current is None else self.current.percent

    @property
    def former_certificates(self) -> tuple[Path, ...]:
        """Certificates for requests outside the stage: those of the pair before, if its probe is the same.

        An engine runs one probe; where the pair before had another one, these requests are not stopped.
        """
        if self.current is None or self.percent == 100 or not self.history:
            return ()
        before = self.history[-1]
        return before.certificates if before.probe == self.current.probe else ()


class ActivationFolder:
    """Reads and changes one folder. Raises CalibrationError for a state that cannot be read."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def read(self) -> Active:
        """What is active now; nothing is where the folder is new."""
        file = self.folder / STATE_FILE
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Active()
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f"{file} cannot be read: {error}. Activate a certificate again with `desist certificate`."
            ) from error
        try:
            stored = Active.model_validate(plain)
        except ValidationError as error:
            raise CalibrationError(
                f"{file} is no activation state: {error.errors()[0]['msg']}. Activate a certificate again."
            ) from error
        current = None if stored.current is None else self._absolute(stored.current)
        history = tuple(self._absolute(pair) for pair in stored.history)
        return stored.model_copy(update={"current": current, "history": history})

    def activate(
        self,
        certificates: Sequence[str | os.PathLike[str]],
        probe: str | os.PathLike[str] | None = None,
        *,
        percent: int = 100,
        force: bool = False,
        when: str = "",
    ) -> Active:
        """Copy a pair in and make it the active one; it takes over `percent` of requests.

        `probe` None: the engine keeps the probe it has. To widen a stage, activate the same pair again: the
        pair before stays the one before. Whether it fits what runs is found out where it runs.
        Raises CalibrationError.
        """
        if not certificates or not 1 <= percent <= 100:
            raise CalibrationError(
                f"{len(certificates)} certificates for {percent} % of requests. Give one or more, 1 to 100 %."
            )
        before = self.read()
        loaded = [load_certificate(path) for path in certificates]
        kept = tuple(self._keep(Path(path), one) for path, one in zip(certificates, loaded, strict=True))
        home = None if probe is None else self._keep_probe(Path(probe))
        names = "\n".join([*(path.name for path in kept), "" if home is None else home.name])
        pair = Pair(
            id=hashlib.sha256(names.encode()).hexdigest()[:12],
            probe=home,
            certificates=kept,
            activated=when,
            percent=percent,
            force=force,
        )
        history = before.history
        if before.current is not None and before.current.id != pair.id:
            history = (*history, before.current)[-_KEPT:]
        return self._write(Active(number=before.number + 1, current=pair, history=history))

    def rollback(self, *, when: str = "") -> Active:
        """Make the pair before the active one, for all requests. Raises CalibrationError where none was."""
        before = self.read()
        if not before.history:
            raise CalibrationError(
                f"{self.folder} knows no pair before the active one. Activate the one that you want."
            )
        pair = before.history[-1].model_copy(update={"activated": when, "percent": 100})
        return self._write(Active(number=before.number + 1, current=pair, history=before.history[:-1]))

    def _write(self, active: Active) -> Active:
        relative = active.model_copy(
            update={
                "current": None if active.current is None else self._relative(active.current),
                "history": tuple(self._relative(pair) for pair in active.history),
            }
        )
        with atomic_file(self.folder / STATE_FILE) as file:
            file.write(relative.model_dump_json(indent=1).encode() + b"\n")
        return active

    def _keep(self, path: Path, certificate: Certificate) -> Path:
        target = self.folder / "certificates" / f"{certificate.digest[:16]}.json"
        for source, kept in [
            (path, target),
            *((path.with_suffix(s), target.with_suffix(s)) for s in _BESIDE),
        ]:
            if source.exists() and source.resolve() != kept.resolve():
                with atomic_file(kept) as file:
                    file.write(source.read_bytes())
        return target

    def _keep_probe(self, folder: Path) -> Path:
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        if not files:
            raise CalibrationError(f"{folder} is no probe: it holds no files. Give the folder of a probe.")
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(folder)}\n{path.stat().st_size}\n".encode() + path.read_bytes())
        target = self.folder / "probes" / digest.hexdigest()[:16]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=".probe.", dir=target.parent))
            try:
                shutil.copytree(folder, part / "probe")
                (part / "probe").replace(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return target

    def _relative(self, pair: Pair) -> Pair:
        return self._paths(pair, lambda path: path.relative_to(self.folder))

    def _absolute(self, pair: Pair) -> Pair:
        return self._paths(pair, lambda path: self.folder / path)

    @staticmethod
    def _paths(pair: Pair, change: Callable[[Path], Path]) -> Pair:
        probe = None if pair.probe is None else change(pair.probe)
        return pair.model_copy(update={"probe": probe, "certificates": tuple(map(change, pair.certificates))})
