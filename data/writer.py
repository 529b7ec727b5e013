"""Trace files that grow over a long job and survive its death.

Knows how to go on after a kill: what was written stays, a torn last line is cut off, nothing is written
twice. While the job runs the records stand in `<path>.partial` (JSON lines, whatever the final format);
`finish` turns them into `path` as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from desist.data.codec import trace_from_dict, trace_to_json
from desist.data.errors import DataError, RecordError
from desist.data.json_text import decode_json
from desist.data.jsonl import atomic_file, sync_folder
from desist.data.records import format_of, read_traces, write_traces
from desist.data.schema import Trace

__all__ = ["TraceWriter"]

logger = logging.getLogger(__name__)

_PARTIAL = ".partial"
_BLOCK = 1 << 20


class TraceWriter:
    """Appends traces to a file in a way that a later run can go on with.

    `done` holds the ids that are written; `write` skips them. A trace is safe from a kill of the process
    when `write` returns, and from a power cut every `sync_every` traces and at `finish`. With
    `resume=False` what an earlier run left is thrown away. Only one writer may have a file at a time.

    As a context manager it finishes when the block ends well, and keeps the partial file when not.
    Raises `DataError` for a file that another process is writing, `RecordError` for a damaged partial.
    """

    def __init__(self, path: str | os.PathLike[str], resume: bool = True, *, sync_every: int = 100) -> None:
        self.path = Path(path)
        self.partial = self.path.with_name(self.path.name + _PARTIAL)
        self.done: set[str] = set()
        self._format = format_of(self.path)
        self._sync_every, self._since_sync = max(1, sync_every), 0
        self._file: IO[bytes] | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resume and self.path.exists() and not self.partial.exists():
            self._continue_finished()
        file = self.partial.open("ab+")
        try:
            _lock(file, self.path)
            if not resume:
                file.truncate(0)
            _cut_torn_tail(file, self.partial)
            self.done = set(self._written_ids())
        except BaseException:
            file.close()
            raise
        self._file = file

    def _continue_finished(self) -> None:
        """A finished file becomes the start of a new partial one: the partial always holds everything."""
        with atomic_file(self.partial) as file:
            for number, trace in enumerate(read_traces(self.path), 1):
                file.write(trace_to_json(trace, str(self.path), number) + b"\n")

    def _written_ids(self) -> Iterator[str]:
        seen: set[str] = set()
        for number, trace in self._written():
            if trace.trace_id in seen:
                raise RecordError(
                    str(self.partial), number, "trace_id", f"{trace.trace_id!r} occurs twice",
                    "Two jobs wrote here: remove one of the two lines.",
                )  # fmt: skip
            seen.add(trace.trace_id)
            yield trace.trace_id

    def _written(self) -> Iterator[tuple[int, Trace]]:
        source = str(self.partial)
        with self.partial.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, trace_from_dict(decode_json(line, source, number), source, number)

    def write(self, trace: Trace) -> bool:
        """Append a trace; False where its id is written already."""
        file = self._open()
        if trace.trace_id in self.done:
            return False
        file.write(trace_to_json(trace, str(self.partial), len(self.done) + 1) + b"\n")
        file.flush()
        self.done.add(trace.trace_id)
        self._since_sync += 1
        if self._since_sync >= self._sync_every:
            os.fsync(file.fileno())
            self._since_sync = 0
        return True

    def finish(self) -> int:
        """Put the whole file in its place and remove the partial one. Returns the number of traces."""
        file = self._open()
        file.flush()
        os.fsync(file.fileno())
        if self._format == "jsonl":
            self.partial.replace(self.path)
        else:
            write_traces(self.path, (trace for _, trace in self._written()))
            self.partial.unlink()
        sync_folder(self.path.parent)
        self.close()
        return len(self.done)

    def close(self) -> None:
        """Stop writing and leave the partial file for a later run."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            raise DataError(f"the writer of {self.path} is closed. Make a new TraceWriter to go on.")
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._file is not None:
            self.finish()
        self.close()


def _lock(file: IO[bytes], path: Path) -> None:
    """Keep other writers out; the system lifts the lock when the process ends, however it ends."""
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{path} is being written by another process. Wait for it, or name another file."
            ) from error


def _cut_torn_tail(file: IO[bytes], path: Path) -> None:
    """Cut a last line without its end: its `write` never returned, so the job will make it again."""
    end = file.seek(0, os.SEEK_END)
    keep, block_end = 0, end
    while block_end > 0:
        start = max(0, block_end - _BLOCK)
        file.seek(start)
        newline = file.read(block_end - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        block_end = start
    if keep < end:
        logger.warning(
            "%s: cut a torn last line of %d bytes, left by a job that was killed", path, end - keep
        )
        file.truncate(keep)
        file.flush()
        os.fsync(file.fileno())
    file.seek(0, os.SEEK_END)
