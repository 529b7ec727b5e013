"""Traces and problems in Parquet: the same records as in JSON, one row each.

Knows the column types and streams row groups both ways. `prompt` and `provenance` have no fixed shape and
are kept as JSON text in their columns. pyarrow is imported when the first file is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from desist.data.errors import DataError, RecordError
from desist.data.json_text import decode_json, encode_json

__all__ = ["read_rows", "write_rows"]

_JSON_COLUMNS = ("prompt", "provenance")
_ROWS_PER_GROUP = 256
_BYTES_PER_GROUP = 16 << 20


@cache
def _schema(what: str) -> Any:
    import pyarrow as pa

    text, whole, truth = pa.string(), pa.int64(), pa.bool_()
    if what == "problem":
        return pa.schema([(name, text) for name in ("problem_id", "problem", "gold", "group", "dataset")])
    boundary = pa.struct(
        [
            ("index", whole), ("position", whole), ("char", whole), ("kind", text), ("text", text),
            ("scores", pa.map_(text, pa.float64())), ("forced_answer", text),
            ("forced_confidence", pa.float64()), ("forced_tokens", whole),
            ("consistent", truth), ("correct", truth),
        ]
    )  # fmt: skip
    sampling = pa.struct(
        [("temperature", pa.float64()), ("top_p", pa.float64()), ("seed", whole), ("max_tokens", whole)]
    )
    return pa.schema(
        [
            ("trace_id", text), ("problem_id", text), ("model", text), ("problem", text), ("reasoning", text),
            ("answer", text), ("n_reasoning_tokens", whole), ("n_answer_tokens", whole), ("truncated", truth),
            ("group", text), ("dataset", text), ("prompt", text), ("gold", text), ("full_correct", truth),
            ("sampling", sampling), ("boundaries", pa.list_(boundary)), ("provenance", text),
        ]
    )  # fmt: skip


def _without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if item is not None}


def _from_row(row: Mapping[str, Any], source: str, number: int) -> dict[str, Any]:
    record = _without_none(row)
    for name in _JSON_COLUMNS:
        if isinstance(record.get(name), str):
            record[name] = decode_json(record[name].encode(), source, number)
    if isinstance(record.get("sampling"), Mapping):
        record["sampling"] = _without_none(record["sampling"])
    boundaries = record.get("boundaries")
    if isinstance(boundaries, list) and all(isinstance(boundary, Mapping) for boundary in boundaries):
        record["boundaries"] = [_without_none(boundary) for boundary in boundaries]
        for boundary in record["boundaries"]:
            if isinstance(boundary.get("scores"), list):
                boundary["scores"] = dict(boundary["scores"])
    return record


def _to_row(record: Mapping[str, Any], source: str, number: int) -> dict[str, Any]:
    row = dict(record)
    for name in _JSON_COLUMNS:
        if name in row:
            row[name] = encode_json({"": row[name]}, source, number)[len('{"":') : -1].decode()
    return row


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers (from 1) and records of the rows, a small batch in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
                for row in batch.to_pylist():
                    number += 1
                    yield number, _from_row(row, str(path), number)
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        raise RecordError(
            str(path), number + 1, "(file)", f"not a sound Parquet file ({error})", "Copy or make it again."
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}. Check that it is a whole Parquet file.") from error


def write_rows(
    file: IO[bytes], records: Iterable[tuple[Mapping[str, Any], int]], what: str, source: str
) -> int:
    """Write records, each with its size in bytes, in row groups; `what` is "trace" or "problem".

    Returns the number of records.
    """
    import pyarrow.parquet as pq

    schema, count, rows, size = _schema(what), 0, [], 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for record, n_bytes in records:
            count += 1
            rows.append(_to_row(record, source, count))
            size += n_bytes
            if len(rows) >= _ROWS_PER_GROUP or size >= _BYTES_PER_GROUP:
                writer.write_table(_table(rows, schema, source, count))
                rows, size = [], 0
        if rows:
            writer.write_table(_table(rows, schema, source, count))
    return count


def _table(rows: list[dict[str, Any]], schema: Any, source: str, last: int) -> Any:
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise RecordError(
            source, last, "(record)", 
            f"one of the last {len(rows)} records does not fit a Parquet column: {error}",
            "Correct it, or write JSONL.",
        ) from error  # fmt: skip
