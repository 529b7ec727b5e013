"""Files of traces and problems: streaming reading, atomic writing.

Knows the formats by their suffix (.jsonl, .jsonl.gz, .parquet). A file of any length is read and written
in constant memory; a file that is being written appears under its name only when it is whole. For long
jobs that may be killed there is `desist.data.writer.TraceWriter`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from desist.data.codec import (
    problem_from_dict,
    problem_to_dict,
    problem_to_json,
    trace_from_dict,
    trace_to_dict,
    trace_to_json,
)
from desist.data.errors import DataError
from desist.data.json_text import decode_json
from desist.data.jsonl import atomic_file, compressed, open_lines
from desist.data.schema import Problem, Trace

__all__ = ["Format", "format_of", "read_problems", "read_traces", "write_problems", "write_traces"]

Format = Literal["jsonl", "jsonl.gz", "parquet"]
T = TypeVar("T")


def format_of(path: Path) -> Format:
    """The file format that a name asks for. Raises `DataError` for a suffix that means none."""
    name = path.name.lower()
    if name.endswith((".jsonl.gz", ".ndjson.gz")):
        return "jsonl.gz"
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"
    raise DataError(f"{path}: the suffix names no known format. Use .jsonl, .jsonl.gz or .parquet.")


def _read(path: str | os.PathLike[str], from_dict: Callable[[object, str, int], T]) -> Iterator[T]:
    file = Path(path)
    kind = format_of(file)
    if not file.is_file():
        raise DataError(f"{file} is not there. Check the path.")
    return _records(file, kind, from_dict)


def _records(file: Path, kind: Format, from_dict: Callable[[object, str, int], T]) -> Iterator[T]:
    source = str(file)
    if kind == "parquet":
        from desist.data.parquet import read_rows

        for number, row in read_rows(file):
            yield from_dict(row, source, number)
    else:
        for number, line in open_lines(file):
            yield from_dict(decode_json(line, source, number), source, number)


def _write(
    path: str | os.PathLike[str],
    records: Iterable[T],
    to_json: Callable[[T, str, int], bytes],
    to_dict: Callable[[T], dict[str, Any]],
    what: str,
) -> int:
    target = Path(path)
    kind, source, count = format_of(target), str(target), 0
    with atomic_file(target) as file:
        if kind == "parquet":
            from desist.data.parquet import write_rows

            def rows() -> Iterator[tuple[Mapping[str, Any], int]]:
                for number, record in enumerate(records, 1):
                    yield to_dict(record), len(to_json(record, source, number))

            return write_rows(file, rows(), what, source)
        if kind == "jsonl.gz":
            with compressed(file) as stream:
                for count, record in enumerate(records, 1):
                    stream.write(to_json(record, source, count) + b"\n")
        else:
            for count, record in enumerate(records, 1):
                file.write(to_json(record, source, count) + b"\n")
    return count


def read_traces(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """The traces of a file, one at a time, validated.

    Raises `DataError` at once for a missing file or an unknown suffix, and `RecordError` where a record
    is malformed. Files in other formats come in through `desist.data.import_file`.
    """
    return _read(path, trace_from_dict)


def write_traces(path: str | os.PathLike[str], traces: Iterable[Trace]) -> int:
    """Write traces to a file, which is replaced as a whole at the end. Returns their number.

    When anything fails on the way, the file is as it was before.
    """
    return _write(path, traces, trace_to_json, trace_to_dict, "trace")


def read_problems(path: str | os.PathLike[str]) -> Iterator[Problem]:
    """The problems of a file: {problem_id?, problem, gold?, group?, dataset?} each.

    A missing `problem_id` is derived from the text (`splits.problem_id`). Errors as in `read_traces`.
    """
    return _read(path, problem_from_dict)


def write_problems(path: str | os.PathLike[str], problems: Iterable[Problem]) -> int:
    """Write problems to a file, which is replaced as a whole at the end. Returns their number."""
    return _write(path, problems, problem_to_json, problem_to_dict, "problem")
