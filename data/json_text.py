"""JSON text of one record, both ways, with errors that name file and line.

Knows what JSON can hold; does not know the fields of a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from desist.data.errors import RecordError
from desist.data.fields import shown

__all__ = ["decode_json", "encode_json"]

_BYTES_SHOWN = 60
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode_json(line: bytes, source: str, number: int) -> Any:
    """One JSON value. Raises `RecordError` for what is no JSON (NaN included) or no UTF-8."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            source,
            number,
            "(record)",
            f"not valid JSON: {error}, found {shown(line[:_BYTES_SHOWN])}",
            "Each line must be one JSON object in UTF-8, without NaN. A killed job leaves a cut last line.",
        ) from error


def _not_finite(value: object, path: str = "") -> str | None:
    """Path of the first NaN or infinity: JSON would turn it into null in silence."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, Mapping):
        found = (_not_finite(item, f"{path}.{key}" if path else str(key)) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        found = (_not_finite(item, f"{path}[{number}]") for number, item in enumerate(value))
    else:
        return None
    return next((where for where in found if where is not None), None)


def encode_json(record: Mapping[str, Any], source: str, number: int) -> bytes:
    """One line of JSON without its line end. Raises `RecordError` for what JSON cannot hold."""
    if (where := _not_finite(record)) is not None:
        raise RecordError(source, number, where, "the number is not finite", "JSON has no NaN; leave it out.")
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise RecordError(
            source,
            number,
            "(record)",
            f"cannot be written as JSON: {error}",
            "Keep plain JSON values in provenance and prompt.",
        ) from error
