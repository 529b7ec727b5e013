"""Writing hidden states to disk: safetensors shards beside a trace file (`hidden_set` reads them).

Knows trace ids, boundary indices, taps and arrays; no model, no torch, no labels. Two stores share one
format: one row per boundary (`HiddenWriter`, the taps side by side) and one row per reasoning token
(`TokenHiddenWriter`, one tap). A shard is written whole or not at all; a writer that is opened again
goes on with the next shard. A trace that is written twice counts as written the second time, so a
collector that flushes hidden states BEFORE it commits the trace record loses nothing when it is killed.

Row t of a token store is the state after reading reasoning token t (0-based); the state of a boundary
with `position` p is therefore row p - 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from desist.data.errors import ProbeError
from desist.probes.hidden_set import HiddenSet, read_hidden
from desist.probes.shards import HiddenDtype, ShardHeader, open_shard, shard_paths

__all__ = [
    "HiddenDtype",
    "HiddenSet",
    "HiddenWriter",
    "TokenHiddenWriter",
    "hidden_dir",
    "read_hidden",
    "token_dir",
]


def hidden_dir(traces: str | Path) -> Path:
    """Where the boundary rows of a trace file lie: `<traces>.hidden`."""
    return Path(f"{traces}.hidden")


def token_dir(traces: str | Path) -> Path:
    """Where the token rows of a trace file lie: `<traces>.hidden-tokens`."""
    return Path(f"{traces}.hidden-tokens")


class _ShardWriter:
    """Buffers rows trace by trace and writes them shard by shard."""

    def __init__(self, folder: str | Path, header: ShardHeader, shard_rows: int) -> None:
        self._folder, self._header, self._shard_rows = Path(folder), header, shard_rows
        self._folder.mkdir(parents=True, exist_ok=True)
        for stale in self._folder.glob(".shard-*"):
            stale.unlink()
        self._done: set[str] = set()
        self._next = 0
        for path in shard_paths(self._folder):
            with open_shard(path) as shard:
                metadata = shard.metadata()
                header.require(ShardHeader.from_metadata(path, metadata), path)
                self._done.update(json.loads(metadata["trace_ids"]))
            self._next = int(path.stem.removeprefix("shard-")) + 1
        self._clear()

    def _clear(self) -> None:
        self._trace_ids: list[str] = []
        self._starts: list[int] = []
        self._indices: list[npt.NDArray[np.int32]] = []
        self._rows: list[npt.NDArray[Any]] = []
        self._count = 0

    @property
    def done(self) -> frozenset[str]:
        """Ids of the traces whose rows are safely on disk (what is still buffered is not)."""
        return frozenset(self._done)

    def _add(self, trace_id: str, indices: Sequence[int], rows: npt.ArrayLike) -> None:
        width = len(self._header.taps) * self._header.dim
        stored = (
            np.asarray(rows, dtype=np.float32).reshape(-1, width) if len(indices) else np.empty((0, width))
        )
        if len(stored) != len(indices):
            raise ProbeError(
                f"trace {trace_id}: {len(stored)} rows for {len(indices)} indices. "
                f"Give one row of {width} each."
            )
        with np.errstate(over="ignore"):
            stored = stored.astype(self._header.dtype)
        if not np.isfinite(stored).all():
            raise ProbeError(
                f"trace {trace_id}: a hidden state is NaN or beyond the range of {self._header.dtype}. "
                "Write with dtype='float32', or look for the fault in the model."
            )
        self._trace_ids.append(trace_id)
        self._starts.append(self._count)
        self._indices.append(np.asarray(indices, dtype=np.int32))
        self._rows.append(stored)
        self._count += len(stored)
        if self._count >= self._shard_rows:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as one shard. After it returns, the rows survive a kill."""
        if not self._trace_ids:
            return
        name = f"shard-{self._next:05d}.safetensors"
        hidden = self._folder / f".{name}"
        tensors = {"rows": np.concatenate(self._rows), "index": np.concatenate(self._indices)}
        save_file(tensors, hidden, self._header.to_metadata(self._trace_ids, self._starts))
        with hidden.open("rb+") as file:
            os.fsync(file.fileno())
        hidden.replace(self._folder / name)
        self._next += 1
        self._done.update(self._trace_ids)
        self._clear()

    def close(self) -> None:
        """Write the rest. The writer may not be used afterwards."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HiddenWriter(_ShardWriter):
    """Writes one row per boundary: the hidden states at `taps`, concatenated, each of width `dim`.

    Opened on a folder that holds shards already, it goes on with them (`done` tells which traces);
    other taps, width, dtype or fingerprints raise `ArtifactMismatch`.
    """

    def __init__(
        self,
        folder: str | Path,
        taps: Sequence[int],
        dim: int,
        dtype: HiddenDtype = "float16",
        *,
        fingerprints: Mapping[str, str] | None = None,
        shard_rows: int = 8192,
    ) -> None:
        header = ShardHeader("boundaries", tuple(taps), dim, dtype, dict(fingerprints or {}))
        super().__init__(folder, header, shard_rows)

    def add(self, trace_id: str, indices: Sequence[int], rows: npt.ArrayLike) -> None:
        """All boundaries of one trace: `rows` [len(indices), K*D]. No boundary is fine: pass two empties."""
        self._add(trace_id, indices, rows)


class TokenHiddenWriter(_ShardWriter):
    """Writes one row per reasoning token at one `tap`: the input of a streaming probe."""

    def __init__(
        self,
        folder: str | Path,
        tap: int,
        dim: int,
        dtype: HiddenDtype = "float16",
        *,
        fingerprints: Mapping[str, str] | None = None,
        shard_rows: int = 65536,
    ) -> None:
        header = ShardHeader("tokens", (tap,), dim, dtype, dict(fingerprints or {}))
        super().__init__(folder, header, shard_rows)

    def add(self, trace_id: str, rows: npt.ArrayLike) -> None:
        """All reasoning tokens of one trace: `rows` [n_reasoning_tokens, D]."""
        self._add(trace_id, range(len(np.asarray(rows))), rows)
