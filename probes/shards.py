"""The format of a hidden-state shard: one safetensors file that says in its header what its rows are.

Knows files and headers; not what is done with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import safe_open

from desist.data.errors import ArtifactMismatch, ProbeError

__all__ = ["HiddenDtype", "ShardHeader", "Store", "open_shard", "shard_paths"]

HiddenDtype = Literal["float16", "float32"]
Store = Literal["boundaries", "tokens"]
_FORMAT, _MAJOR = "desist-hidden", "1"


class ShardHeader(NamedTuple):
    """What every shard of one store must agree on."""

    store: Store
    taps: tuple[int, ...]
    dim: int
    dtype: HiddenDtype
    fingerprints: Mapping[str, str]

    def to_metadata(self, trace_ids: Sequence[str], starts: Sequence[int]) -> dict[str, str]:
        return {
            "format": _FORMAT,
            "version": _MAJOR,
            "store": self.store,
            "taps": json.dumps(self.taps),
            "dim": str(self.dim),
            "dtype": self.dtype,
            "fingerprints": json.dumps(dict(self.fingerprints), sort_keys=True),
            "trace_ids": json.dumps(list(trace_ids)),
            "starts": json.dumps(list(starts)),
        }

    @classmethod
    def from_metadata(cls, path: Path, found: Mapping[str, str] | None) -> ShardHeader:
        if not found or found.get("format") != _FORMAT:
            raise ProbeError(f"{path} is no hidden-state shard. Remove it from the folder.")
        if found["version"] != _MAJOR:
            raise ProbeError(
                f"{path}: format version {found['version']}, this release reads version {_MAJOR}. "
                "Install the release that wrote it, or collect again."
            )
        store: Any = found["store"]
        dtype: Any = found["dtype"]
        taps = tuple(json.loads(found["taps"]))
        return cls(store, taps, int(found["dim"]), dtype, json.loads(found["fingerprints"]))

    def require(self, other: ShardHeader, path: Path) -> None:
        for field, here, there in zip(self._fields, self, other, strict=True):
            if here != there:
                raise ArtifactMismatch(
                    f"{path}: {field} is {there!r}, but {here!r} is asked for. "
                    "Collect into a new folder, or use the settings the folder was begun with."
                )


def shard_paths(folder: Path) -> list[Path]:
    """The finished shards of a folder, in the order they were written."""
    return sorted(folder.glob("shard-*.safetensors"))


def open_shard(path: Path) -> Any:
    """An open safetensors file that gives numpy arrays. Raises `ProbeError` if it is damaged."""
    try:
        return safe_open(path, framework="np")
    except Exception as exc:  # safetensors raises its own untyped errors
        raise ProbeError(f"{path} cannot be read ({exc}). Remove it and collect again.") from exc
