"""Reading hidden states back: rows by (trace_id, index), taken from the shards when they are asked for.

Knows shards and keys; no traces, labels or probes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from desist.data.errors import ProbeError
from desist.probes.shards import HiddenDtype, ShardHeader, Store, open_shard, shard_paths

__all__ = ["HiddenSet", "read_hidden"]

Rows = npt.NDArray[np.float32]


class _Place(NamedTuple):
    shard: int
    start: int
    indices: npt.NDArray[np.int32]


class HiddenSet:
    """Hidden states that were written, looked up by (trace_id, index). Rows are read when asked for."""

    def __init__(self, header: ShardHeader, shards: Sequence[Any], places: Mapping[str, _Place]) -> None:
        self._header, self._shards, self._places = header, shards, places

    @property
    def taps(self) -> tuple[int, ...]:
        """The taps of one row, in the order of its columns."""
        return self._header.taps

    @property
    def dim(self) -> int:
        """Width D of one tap."""
        return self._header.dim

    @property
    def dtype(self) -> HiddenDtype:
        """The type on disk. Rows are given as float32 always."""
        return self._header.dtype

    @property
    def store(self) -> Store:
        """What a row stands for: a boundary or a token."""
        return self._header.store

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """What the hidden states were computed with."""
        return self._header.fingerprints

    @property
    def trace_ids(self) -> frozenset[str]:
        return frozenset(self._places)

    def __len__(self) -> int:
        return sum(len(place.indices) for place in self._places.values())

    def __contains__(self, trace_id: str) -> bool:
        return trace_id in self._places

    def of_trace(self, trace_id: str, indices: Sequence[int] | None = None) -> Rows:
        """Rows [n, K*D] of one trace, for `indices` in their order (default: all, as written)."""
        place = self._places.get(trace_id)
        if place is None:
            raise ProbeError(
                f"no hidden states of trace {trace_id}. Collect the traces and their hidden states together."
            )
        rows = np.empty((0, len(self.taps) * self.dim), dtype=np.float32)
        if len(place.indices):  # safetensors cannot slice nothing
            stop = place.start + len(place.indices)
            rows = self._shards[place.shard].get_slice("rows")[place.start : stop].astype(np.float32)
        if indices is None:
            return rows
        where = {int(index): row for row, index in enumerate(place.indices)}
        missing = [index for index in indices if index not in where]
        if missing:
            raise ProbeError(
                f"trace {trace_id}: no hidden state for index {missing[0]} ({len(where)} are stored). "
                "The traces and the hidden states come from different runs: collect again."
            )
        return rows[[where[index] for index in indices]]

    def gather(self, keys: Iterable[tuple[str, int]]) -> Rows:
        """One float32 array [n, K*D] aligned with `keys` = (trace_id, index); neighbours read together."""
        keys = list(keys)
        out = np.empty((len(keys), len(self.taps) * self.dim), dtype=np.float32)
        start = 0
        while start < len(keys):
            stop = start
            while stop < len(keys) and keys[stop][0] == keys[start][0]:
                stop += 1
            out[start:stop] = self.of_trace(keys[start][0], [index for _, index in keys[start:stop]])
            start = stop
        return out

    def columns(self, taps: Sequence[int]) -> list[int]:
        """Column numbers of `taps` in a row, so that a probe may use some of the taps stored."""
        missing = [tap for tap in taps if tap not in self.taps]
        if missing:
            raise ProbeError(
                f"tap {missing[0]} is not among the stored taps {self.taps}. "
                "Choose among these, or collect again with that tap."
            )
        places = [self.taps.index(tap) for tap in taps]
        return [place * self.dim + column for place in places for column in range(self.dim)]


def read_hidden(folder: str | Path) -> HiddenSet:
    """Open a folder of shards (either store). Raises `ProbeError` if there is none or one is damaged."""
    folder = Path(folder)
    paths = shard_paths(folder)
    if not paths:
        raise ProbeError(f"no hidden states in {folder}. Collect with hidden states kept.")
    shards: list[Any] = []
    places: dict[str, _Place] = {}
    header: ShardHeader | None = None
    for number, path in enumerate(paths):
        shard = open_shard(path)
        metadata = shard.metadata()
        found = ShardHeader.from_metadata(path, metadata)
        if header is not None:
            header.require(found, path)
        header = found
        index = shard.get_tensor("index")
        starts = [*json.loads(metadata["starts"]), len(index)]
        for i, trace_id in enumerate(json.loads(metadata["trace_ids"])):
            places[trace_id] = _Place(number, starts[i], index[starts[i] : starts[i + 1]])
        shards.append(shard)
    assert header is not None
    return HiddenSet(header, shards, places)
