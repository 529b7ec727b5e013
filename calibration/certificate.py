"""The certificate: a frozen threshold with everything that its guarantee depends on, as one JSON file.

Knows how to save, read, check and apply itself; not how it was computed. The digest finds damage and
hand edits; it is no signature, anyone can compute it. Nothing here is ever loosened in silence.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from desist.calibration.ltt import default_grid
from desist.calibration.plan import Plan
from desist.controller.core import Policy
from desist.data.errors import ArtifactMismatch, CalibrationError

__all__ = ["SCHEMA_VERSION", "CannotCertify", "Certificate", "load_certificate", "load_for_running"]

SCHEMA_VERSION = 1
_SCORERS = frozenset({"probe", "rom"})  # names of scorers that have fingerprints of their own


class CannotCertify(Plan):
    """No threshold could be certified; the only policy left never stops.

    `reason`: "too_few" (fewer than `needed_n` problems: nothing can be certified), "too_risky" (even the
    most careful threshold that stops anything fails too often; `needed_n` estimates how many problems
    would do, None where its risk itself is not below alpha), "no_stops" (the scorer never crosses a
    threshold) or "no_gain" (what could be certified saves no tokens).
    `n_bad`: losses at the most careful threshold that stops anything.
    """

    reason: Literal["too_few", "too_risky", "no_stops", "no_gain"]
    n: int
    n_bad: int = 0
    needed_n: int | None = None
    certified: Literal[False] = False

    @property
    def message(self) -> str:
        """One line for people: what failed and what would help."""
        if self.reason == "too_few":
            return f"cannot certify, need n >= {self.needed_n} problems, have {self.n}"
        if self.reason == "no_stops":
            return f"cannot certify: the score '{self.scorer}' is 0 on all {self.n} problems, nothing stops"
        if self.reason == "no_gain":
            return (
                "cannot certify a saving: the thresholds that are safe enough cost more tokens than they save"
            )
        found = (
            f"cannot certify: {self.n_bad} of {self.n} problems lost at the most careful threshold that stops"
        )
        more = "a better probe or a larger alpha is needed" if self.needed_n is None else ""
        return f"{found}; {more or f'need n >= {self.needed_n} (estimated)'}"

    def policy(self) -> Policy:
        """The policy that never stops."""
        return self.shape(None)


class Certificate(Plan):
    """A certified threshold.

    `n`: calibration problems, one trace each; `n_bad`: losses among them at `lam` with its exact 95 %
    interval (`risk_low`, `risk_high`); `saved_fraction`: tokens saved on them, net. For "ltt" all grid
    thresholds down to `lowest` were certified together (`grid_values` only where the grid was not the
    default one); for "pac" every threshold from `lam` up is covered. `problems`: hashes of the calibration
    problems. `fingerprints`: what must be the same when the threshold is used. `voided` names the ones
    that differed when it was loaded by force: such a certificate gives uncertified policies.
    """

    schema_version: Literal[1] = 1
    lam: float = Field(ge=0, le=1)
    n: int = Field(ge=1)
    n_bad: int = Field(ge=0)
    n_stopped: int = Field(ge=0)
    n_truncated: int = Field(default=0, ge=0)
    other_samples: int = Field(default=0, ge=0)
    risk: float
    risk_low: float
    risk_high: float
    saved_fraction: float
    grid: Literal["default-1", "given", "continuous"]
    grid_values: tuple[float, ...] = ()
    lowest: float
    problems: tuple[str, ...]
    fingerprints: dict[str, str]
    created: str
    versions: dict[str, str]
    text: str
    voided: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def certified(self) -> bool:
        """Whether the guarantee holds here (False once loaded by force over a mismatch)."""
        return not self.voided

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of everything that is saved."""
        plain = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()

    def policy(self, lam: float | None = None) -> Policy:
        """The policy to run. `lam` may be another threshold that this certificate covers.

        Raises CalibrationError for a threshold that it does not cover.
        """
        threshold = self.lam if lam is None else lam
        if not self.covers(threshold):
            known = "any higher one" if self.method == "pac" else f"a value of its grid from {self.lowest} up"
            raise CalibrationError(
                f"threshold {threshold} is not covered by this certificate. Use {self.lam} or {known}, "
                "or calibrate again."
            )
        return self.shape(threshold, certified=self.certified)

    def covers(self, lam: float) -> bool:
        """Higher thresholds are covered by the critical score; Learn then Test covers those it tested."""
        if lam < self.lowest:
            return False
        if self.method == "pac":
            return True
        return lam in (self.grid_values or default_grid())

    def check(self, expect: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the fingerprints in `expect` that differ from this certificate's, or are not in it."""
        return tuple(sorted(key for key, value in expect.items() if self.fingerprints.get(key) != value))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON in one step: readers see the old file or the new one, never a part."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        document = {**self.model_dump(mode="json"), "digest": self.digest}
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        part = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1, ensure_ascii=False)
                file.write("\n")
            part.chmod(0o644)  # mkstemp makes files that only their owner reads
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return target


def load_certificate(
    path: str | os.PathLike[str],
    *,
    expect: Mapping[str, str] | None = None,
    force: bool = False,
) -> Certificate:
    """Read a certificate and check that it fits what runs now.

    `expect`: fingerprints of what runs now; each must be in the certificate and equal. With `force` a
    mismatch is let through, and the certificate's policies are marked uncertified.
    Raises CalibrationError (unreadable, damaged, unknown version) or ArtifactMismatch.
    """
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        version, digest = document.get("schema_version"), document.pop("digest", None)
    except (OSError, ValueError, AttributeError, KeyError) as failure:
        raise CalibrationError(f"{path} is no certificate: {failure}. Run `desist calibrate`.") from failure
    if version != SCHEMA_VERSION:
        raise CalibrationError(
            f"{path} has certificate version {version!r}, this desist reads {SCHEMA_VERSION}. "
            "Calibrate again."
        )
    try:
        certificate = Certificate.model_validate(document)
    except (ValidationError, CalibrationError) as failure:
        raise CalibrationError(f"{path} is no valid certificate: {failure}") from failure
    if certificate.digest != digest:
        raise CalibrationError(
            f"{path} was changed after it was made: its digest is not {str(digest)[:12]}. Calibrate again."
        )
    differing = certificate.check(expect or {})
    if not differing:
        return certificate
    found = "; ".join(
        f"{key}: certified {certificate.fingerprints.get(key)!r}, running {(expect or {})[key]!r}"
        for key in differing
    )
    if not force:
        raise ArtifactMismatch(
            f"{path} was made for something else ({found}). Calibrate for what runs now, or force it and "
            "lose the guarantee."
        )
    return certificate.model_copy(update={"voided": differing})


def load_for_running(
    path: str | os.PathLike[str], running: Mapping[str, str], *, force: bool = False
) -> Certificate:
    """`load_certificate` for a system that may run several probes at once.

    A certificate is about one scorer; which other probes run beside it does not matter, so that of the
    fingerprints named after a scorer only its own is compared.
    """
    scorer = load_certificate(path, force=True).scorer
    expect = {key: value for key, value in running.items() if key not in _SCORERS or key == scorer}
    return load_certificate(path, expect=expect, force=force)
