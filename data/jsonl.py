"""Lines of JSON in plain and gzipped files: streaming, atomic, never more than one line in memory.

Knows lines, compression and how a file is replaced as a whole; does not know what the lines hold.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from desist.data.errors import DataError, RecordError

__all__ = ["atomic_file", "compressed", "open_lines", "sync_folder"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder last through a power cut, where the system can do so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well, and is gone when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """A gzip stream into an open file, without name and time, so that equal records give equal files."""
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as stream:
        yield stream  # type: ignore[misc]


def open_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Numbers (from 1) and bytes of the lines, blank ones only if asked for; `.gz` is unpacked on the way.

    Raises `RecordError` for a gzip file that was cut off, is damaged, or is followed by other bytes.
    """
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, 1):
                content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if blank or content.strip():
                    yield number, content
    except EOFError as error:
        raise RecordError(
            str(path),
            number + 1,
            "(file)",
            "the gzip file ends too early",
            "It was cut off: copy or make it again.",
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(
            str(path), number + 1, "(file)", f"not a sound gzip file ({error})",
            "It is damaged or has other bytes after its end: copy or make it again.",
        ) from error  # fmt: skip
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}. Check the path and its permissions."
        ) from error
