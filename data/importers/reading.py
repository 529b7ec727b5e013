"""Any file of traces as a stream of values, with its format found out from the first of them.

Knows JSON lines, one JSON document, `data:` lines of a recorded stream and plain text, each also gzipped.
Does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from desist.data.errors import DataError, RecordError
from desist.data.importers.chat import is_chat
from desist.data.importers.published import is_published
from desist.data.json_text import decode_json
from desist.data.jsonl import open_lines

__all__ = ["FORMATS", "ImportFormat", "detect", "values"]

ImportFormat = Literal["desist", "published", "chat", "text"]
FORMATS: tuple[ImportFormat, ...] = get_args(ImportFormat)
_LARGEST_DOCUMENT = 1 << 30
_EVENT, _DONE = b"data:", b"[DONE]"


def _suffix(path: Path) -> str:
    return path.name.lower().removesuffix(".gz").rpartition(".")[2]


def _whole(path: Path) -> bytes:
    """A file that is one document; refused where it is too large to hold."""
    if path.stat().st_size > _LARGEST_DOCUMENT:
        raise DataError(
            f"{path} is one document of over {_LARGEST_DOCUMENT >> 30} GiB. Split it into JSON lines."
        )
    return b"".join(line for _, line in open_lines(path, blank=True))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """One value per line; a line that is no JSON gives its `RecordError` instead of a value."""
    for number, line in open_lines(path):
        content = line.strip()
        if content.startswith(_EVENT):
            content = content.removeprefix(_EVENT).strip()
        elif content.startswith((b"event:", b":", b"id:", b"retry:")):
            continue
        if content == _DONE:
            continue
        try:
            yield number, decode_json(content, str(path), number)
        except RecordError as error:
            yield number, error


def _document(path: Path) -> list[tuple[int, Any]] | None:
    """The values of a file that is one JSON document, object or list; None where it is none."""
    try:
        value = msgspec.json.decode(_whole(path))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return list(enumerate(value, 1)) if isinstance(value, list) else [(1, value)]


def _text(path: Path) -> str:
    try:
        return _whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is no UTF-8 text ({error.reason} at byte {error.start}). Convert it first."
        ) from error


def detect(path: Path) -> ImportFormat:
    """The format of a file, told from its suffix and its first value. Raises `DataError` if there is none."""
    if _suffix(path) == "parquet":
        return "desist"
    found = (value for _, value in values(path, None) if not isinstance(value, RecordError))
    if (first := next(found, None)) is None:
        raise DataError(
            f"{path}: the file is empty, or none of its lines is JSON. Name its format if it has one."
        )
    if isinstance(first, str):
        return "text"
    if is_published(first):
        return "published"
    if is_chat(first):
        return "chat"
    if isinstance(first, Mapping) and "trace_id" in first:
        return "desist"
    shown = sorted(map(str, first))[:8] if isinstance(first, Mapping) else first
    raise DataError(
        f"{path}: no known trace format begins with {shown!r}. Name the format: {', '.join(FORMATS)}."
    )


def values(path: Path, wanted: ImportFormat | None) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a file: decoded JSON, a `RecordError` for a broken line, or the one text."""
    if not path.is_file():
        raise DataError(f"{path} is not there. Check the path.")
    if wanted == "text" or (wanted is None and _suffix(path) in ("txt", "md", "text")):
        yield 1, _text(path)
        return
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        return
    if isinstance(first[1], (RecordError, list)) and (document := _document(path)) is not None:
        yield from document
    elif (
        isinstance(first[1], RecordError)
        and wanted is None
        and _suffix(path) not in ("jsonl", "ndjson", "json")
    ):
        yield 1, _text(path)
    else:
        yield from chain([first], lines)
