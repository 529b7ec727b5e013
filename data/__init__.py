"""Traces and problems: their schema, files, importers, answers, judges and splits.

The door of the folder: `desist.data` imports no other folder of desist.
"""

from __future__ import annotations

from desist.data.answers import extract_answer
from desist.data.errors import DataError, DesistError, RecordError
from desist.data.fingerprint import fingerprint
from desist.data.importers import ImportReport, import_file
from desist.data.judging import Judge, answers_equal, get_judge
from desist.data.records import read_problems, read_traces, write_problems, write_traces
from desist.data.schema import BoundaryRecord, Problem, Sampling, Trace
from desist.data.splits import problem_id, split_of
from desist.data.writer import TraceWriter

__all__ = [
    "BoundaryRecord",
    "DataError",
    "DesistError",
    "ImportReport",
    "Judge",
    "Problem",
    "RecordError",
    "Sampling",
    "Trace",
    "TraceWriter",
    "answers_equal",
    "extract_answer",
    "fingerprint",
    "get_judge",
    "import_file",
    "problem_id",
    "read_problems",
    "read_traces",
    "split_of",
    "write_problems",
    "write_traces",
]
