"""The error tree of desist. Every error says what was found, its value and the remedy.

DesistError
 ├─ DataError            a trace, problem or file that cannot be used (also ValueError)
 │   └─ RecordError      one record of a file: carries the file, the line and the field
 ├─ ControlError         a stop policy, profile or request control that makes no sense (also ValueError)
 ├─ ProbeError           a probe or its artefact that cannot be trained, read or applied
 ├─ CalibrationError     calibration input that voids the guarantee
 ├─ ArtifactMismatch     fingerprints of an artefact differ from what runs now
 ├─ EngineError          an engine that cannot serve a request
 │   └─ UpstreamError    the server behind the proxy failed; carries its HTTP status
 └─ NotOffered           a policy needs what this engine does not offer

It stands in `data` because `data` is the one folder that every other one may import.
"""

from __future__ import annotations

__all__ = [
    "ArtifactMismatch",
    "CalibrationError",
    "ControlError",
    "DataError",
    "DesistError",
    "EngineError",
    "NotOffered",
    "ProbeError",
    "RecordError",
    "UpstreamError",
]


class DesistError(Exception):
    """Root of all errors that desist raises on purpose."""


class DataError(DesistError, ValueError):
    """A trace, problem or file cannot be used."""


class RecordError(DataError):
    """One record of a file is malformed.

    Attributes: `source` (file or stream name), `line` (1-based record number), `field` (dotted path).
    """

    def __init__(self, source: str, line: int, field: str, problem: str, remedy: str) -> None:
        self.source, self.line, self.field = source, line, field
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{source}, line {line}, field '{field}': {problem}. {remedy}")

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, int, str, str, str]]:
        return (RecordError, (self.source, self.line, self.field, self.problem, self.remedy))


class ControlError(DesistError, ValueError):
    """A stop policy, model profile or request control that makes no sense."""


class ProbeError(DesistError):
    """A probe or its artefact cannot be trained, read or applied."""


class CalibrationError(DesistError, ValueError):
    """Calibration input that would void the guarantee (overlap, missing labels, bad alpha)."""


class ArtifactMismatch(DesistError):
    """The fingerprints of an artefact differ from those of what runs now."""


class EngineError(DesistError):
    """An engine cannot serve this request."""


class UpstreamError(EngineError):
    """The server behind the proxy failed. Attribute `status`: its HTTP status, or None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class NotOffered(DesistError):
    """A policy needs a signal that this engine does not offer."""
