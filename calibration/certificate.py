"""The certificate: a frozen threshold with everything that its guarantee depends on, as one JSON file.

Knows how to save, read, check and apply itself; not how it was computed. The digest finds damage and
hand edits; it is no signature, anyone can compute it. Nothing here is ever loosened in silence.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError

from desist.calibration.cannot import CannotCertify
from desist.calibration.fingerprints import differing, plan_prints
from desist.calibration.ltt import default_grid
from desist.calibration.plan import Plan
from desist.controller.core import GiveUp, Policy
from desist.data.errors import ArtifactMismatch, CalibrationError
from desist.data.jsonl import atomic_file

__all__ = ["SCHEMA_VERSION", "CannotCertify", "Certificate", "load_certificate", "load_for_running"]

SCHEMA_VERSION = "1.1"
"""Readers refuse another major number; a higher minor one only adds fields that may be left out."""
_SCORERS = frozenset({"probe", "rom"})  # names of scorers that have fingerprints of their own


class Certificate(Plan):
    """A certified threshold.

    `n`: calibration problems, one trace each; `n_bad`: losses among them at `lam` with its exact 95 %
    interval (`risk_low`, `risk_high`); `saved_fraction`: tokens saved on them, net. For "ltt" all grid
    thresholds down to `lowest` were certified together (`grid_values` only where the grid was not the
    default one); where `grid` is "continuous" every threshold from `lam` up is covered. `n_unjudged`:
    boundaries that count as lost because the judge could not decide; `n_order`: problems beside the `n` that
    only ordered the tests ("pareto"); `give_up`: the threshold of 1 - score above which a problem is given
    up, with `n_given_up` of the `n` (without `give_up_alpha` it acts and is not covered). `n_effective`: what
    weighted problems are worth, `weighted_risk`: their share of losses by weight. `problems`: hashes of the
    calibration problems.
    `fingerprints`: what must be the same when the threshold is used. `voided` names the ones
    that differed when it was loaded by force: such a certificate gives uncertified policies.
    """

    added: ClassVar[tuple[str, ...]] = (
        *Plan.added,
        "n_unjudged",
        "n_order",
        "give_up",
        "n_given_up",
        "n_effective",
        "weighted_risk",
        "expires",
    )

    schema_version: Literal[1] | str = SCHEMA_VERSION
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
    n_unjudged: int = Field(default=0, ge=0)
    n_order: int = Field(default=0, ge=0)
    give_up: float | None = None
    n_given_up: int = Field(default=0, ge=0)
    n_effective: float | None = None
    weighted_risk: float | None = None
    problems: tuple[str, ...]
    fingerprints: dict[str, str]
    created: str
    expires: str = ""
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
        return _digest(self.model_dump(mode="json"))

    def policy(self, lam: float | None = None) -> Policy:
        """The policy to run. `lam` may be another threshold that this certificate covers.

        Raises CalibrationError for a threshold that it does not cover.
        """
        threshold = self.lam if lam is None else lam
        if not self.covers(threshold):
            known = (
                "any higher one"
                if self.grid == "continuous"
                else f"a value of its grid from {self.lowest} up"
            )
            raise CalibrationError(
                f"threshold {threshold} is not covered by this certificate. Use {self.lam} or {known}, "
                "or calibrate again."
            )
        policy = self.shape(threshold, certified=self.certified)
        return policy if self.give_up is None else replace(policy, give_up=self._give_up(self.give_up))

    def _give_up(self, above: float) -> GiveUp:
        """The other side, which is covered where this certificate holds a risk of giving up."""
        certified = self.certified and self.give_up_alpha is not None
        return GiveUp(above, self.give_up_after, certified)

    def covers(self, lam: float) -> bool:
        """Higher thresholds are covered by the critical score; Learn then Test covers those it tested."""
        if lam < self.lowest:
            return False
        if self.grid == "continuous":
            return True
        return lam in (self.grid_values or default_grid())

    @property
    def prints(self) -> dict[str, str]:
        """Every field that must be the same in use: the stored fingerprints and what the plan declares."""
        return {**self.fingerprints, **plan_prints(self)}

    def check(self, expect: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the fields in `expect` that differ from this certificate's, or are not in it."""
        return tuple(sorted(differing(self, self.fingerprints, expect)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON in one step: readers see the old file or the new one, never a part."""
        target = Path(path)
        document = {**self.model_dump(mode="json"), "digest": self.digest}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        with atomic_file(target) as file:
            file.write(text.encode())
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
    certificate = _read(Path(path))
    expected = expect or {}
    other = differing(certificate, certificate.fingerprints, expected)
    if not other:
        return certificate
    names = tuple(sorted(other))
    found = "; ".join(f"{name}: certified {other[name]!r}, running {expected[name]!r}" for name in names)
    if not force:
        raise ArtifactMismatch(
            f"{path} was made for something else ({found}). Calibrate for what runs now, or force it and "
            "lose the guarantee."
        )
    return certificate.model_copy(update={"voided": names})


def _read(path: Path) -> Certificate:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, digest = document.get("schema_version"), document.pop("digest", None)
    except (OSError, ValueError, AttributeError, KeyError) as failure:
        raise CalibrationError(f"{path} is no certificate: {failure}. Run `desist calibrate`.") from failure
    ours, theirs = _numbers(SCHEMA_VERSION), _numbers(version)
    if theirs is None or ours is None or theirs[0] != ours[0]:
        raise CalibrationError(
            f"{path} has certificate version {version!r}, this desist reads {SCHEMA_VERSION}. "
            "Calibrate again."
        )
    if _digest(document) != digest:
        raise CalibrationError(
            f"{path} was changed after it was made: its digest is not {str(digest)[:12]}. Calibrate again."
        )
    if theirs > ours:
        document = {name: value for name, value in document.items() if name in Certificate.model_fields}
    try:
        return Certificate.model_validate(document)
    except (ValidationError, CalibrationError) as failure:
        raise CalibrationError(f"{path} is no valid certificate: {failure}") from failure


def _numbers(version: object) -> tuple[int, int] | None:
    """Major and minor number; None for what is no version."""
    major, _, minor = str(version).partition(".")
    if isinstance(version, bool) or not (major.isdecimal() and (minor or "0").isdecimal()):
        return None
    return int(major), int(minor or 0)


def _digest(document: Mapping[str, Any]) -> str:
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


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
