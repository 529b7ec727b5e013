"""`import_file`: from a file in any known format to validated traces and a report.

Knows the order of the steps (read, convert, judge, validate, count); formats are in their own modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from desist.data.answers import extract_answer
from desist.data.codec import trace_from_dict, trace_to_dict
from desist.data.errors import DataError, RecordError
from desist.data.fingerprint import fingerprint
from desist.data.importers.chat import chat_traces, joined_stream
from desist.data.importers.published import published_traces
from desist.data.importers.reading import FORMATS, ImportFormat, detect, values
from desist.data.importers.report import ImportReport, Unusable
from desist.data.importers.tagged import tagged_traces
from desist.data.judging import answers_equal, get_judge
from desist.data.schema import Trace

__all__ = ["TraceImport", "import_file"]

Importer = Callable[[object, int, ImportReport], list[Trace]]


def _desist_traces(value: object, number: int, report: ImportReport) -> list[Trace]:
    return [trace_from_dict(value, report.source, number)]


_IMPORTERS: dict[ImportFormat, Importer] = {
    "desist": _desist_traces,
    "published": published_traces,
    "chat": chat_traces,
    "text": tagged_traces,
}


class TraceImport(Iterator[Trace]):
    """The traces of one file, one at a time; `report` is complete when they are exhausted."""

    def __init__(self, traces: Iterator[Trace], report: ImportReport) -> None:
        self._traces, self.report = traces, report

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Trace:
        return next(self._traces)


def import_file(
    path: str | os.PathLike[str],
    format: ImportFormat | Literal["auto"] = "auto",
    *,
    judge: str | None = None,
) -> TraceImport:
    """Import the traces of a file.

    `format`: "published" (flat records of published trace sets), "chat" (OpenAI-style responses, batch
    output, recorded streams), "text" (one output with think tags), "desist" (our own), or "auto".
    `judge`: judge `full_correct` anew, by that judge, wherever there is a gold answer; otherwise the
    source's own verdict is kept. A record that cannot be used is left out and entered in the report; one
    whose id occurred before gets a number behind its id, or is left out if it is the same record.
    Raises `DataError` for a file that is missing or in no known format, `RecordError` for a damaged one.
    """
    source = Path(path)
    if not source.is_file():
        raise DataError(f"{source} is not there. Check the path.")
    if format != "auto" and format not in FORMATS:
        raise DataError(f"unknown import format {format!r}. Known formats: auto, {', '.join(FORMATS)}.")
    if judge is not None:
        get_judge(judge)
    found: ImportFormat = detect(source) if format == "auto" else format
    report = ImportReport(str(source), found)
    return TraceImport(_traces(source, found, report, judge), report)


def _stream(source: Path, found: ImportFormat) -> Iterator[tuple[int, Any]]:
    if found == "desist" and source.suffix.lower() == ".parquet":
        from desist.data.parquet import read_rows

        return read_rows(source)
    stream = values(source, found)
    return joined_stream(stream) if found == "chat" else stream


def _traces(source: Path, found: ImportFormat, report: ImportReport, judge: str | None) -> Iterator[Trace]:
    seen: dict[str, str] = {}
    for number, value in _stream(source, found):
        try:
            if isinstance(value, RecordError):
                raise value
            traces = _IMPORTERS[found](value, number, report)
        except (Unusable, RecordError) as error:
            report.n_read += 1
            report.drop(number, error.problem if isinstance(error, RecordError) else str(error))
            continue
        for trace in traces:
            report.n_read += 1
            try:
                checked = _checked(trace, report, number, judge)
            except RecordError as error:
                report.drop(number, f"field '{error.field}': {error.problem}")
                continue
            if (unique := _with_own_id(checked, seen)) is None:
                report.drop(number, "the same record as an earlier one")
                continue
            if unique.trace_id != checked.trace_id:
                report.notes["id renamed: it occurred before with another text"] += 1
            if not unique.reasoning.strip():
                report.notes["no reasoning text"] += 1
            report.n_imported += 1
            yield unique


def _checked(trace: Trace, report: ImportReport, number: int, judge: str | None) -> Trace:
    valid = trace_from_dict(trace_to_dict(trace), report.source, number)
    if judge is None or valid.gold is None:
        return valid
    verdict = answers_equal(extract_answer(valid.answer), valid.gold, judge)
    return replace(valid, full_correct=verdict, provenance={**valid.provenance, "judge": judge})


def _with_own_id(trace: Trace, seen: dict[str, str]) -> Trace | None:
    """The trace under an id that no other has; None where the very same one was there before."""
    content = fingerprint([trace.problem, trace.reasoning, trace.answer, trace.model])
    identity, copy = trace.trace_id, 1
    while identity in seen:
        if seen[identity] == content:
            return None
        copy += 1
        identity = f"{trace.trace_id}#{copy}"
    seen[identity] = content
    return trace if identity == trace.trace_id else replace(trace, trace_id=identity)
