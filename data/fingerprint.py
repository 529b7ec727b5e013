"""Short fingerprints of plain values.

Knows how to turn a JSON-like value into canonical JSON and into a short hash. Does not know what the value
stands for: callers decide which facts belong in a card or a certificate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath

from desist.data.errors import DataError

__all__ = ["canonical_json", "fingerprint"]


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, PurePath):
        return value.as_posix()
    return value


def canonical_json(obj: object) -> str:
    """One JSON text per value: sorted keys, no spaces, dataclasses as mappings, sets sorted.

    Raises `DataError` for values JSON cannot hold (objects, NaN, infinities).
    """
    try:
        return json.dumps(
            _plain(obj), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"cannot fingerprint {type(obj).__name__}: {error}") from error


def fingerprint(obj: object) -> str:
    """The first 16 hex digits of the SHA-256 of the value's canonical JSON (UTF-8)."""
    return hashlib.sha256(canonical_json(obj).encode()).hexdigest()[:16]
