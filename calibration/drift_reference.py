"""Calibration traces as the beginning of a drift detector's history: one small file beside a certificate.

Knows how the bins and the first counts come from statistics of calibration traces. The file is a pure
function of them, holds counts only, and its key names it: a detector is started anew for another key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from desist.calibration.drift import ALARM_EVERY, DriftDetector, RankHistory
from desist.calibration.drift_statistics import STATISTICS
from desist.controller.core import Policy
from desist.data.errors import ArtifactMismatch, CalibrationError
from desist.data.fingerprint import fingerprint
from desist.data.jsonl import atomic_file

__all__ = ["FEWEST", "DriftReference", "build_reference", "policy_fields", "reference_path"]

FEWEST = 100
"""Fewest calibration traces: a shorter history is soon made of the drifted traces themselves."""

_BINS = 64
_EDGE_SHARE = 4  # one in so many traces gives the edges, at most _MOST_EDGES of them
_MOST_EDGES = 1024


class DriftReference(BaseModel):
    """Edges and first counts of each statistic, for one policy.

    `certificate`: its digest (empty: none). `n`: traces counted; `n_edges`: traces that gave the edges.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    statistics: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    n: int = Field(ge=1)
    n_edges: int = Field(ge=1)
    seed: int
    policy: dict[str, Any]
    certificate: str = ""

    @property
    def key(self) -> str:
        """Names this reference: another certificate, policy or calibration set gives another key."""
        return fingerprint(self.model_dump(mode="json"))

    def detector(self, *, seed: int = 0, alarm_every: float = ALARM_EVERY) -> DriftDetector:
        """A detector at the beginning of its stream."""
        histories = [RankHistory(*pair) for pair in zip(self.edges, self.counts, strict=True)]
        return DriftDetector(histories, seed=seed, alarm_every=alarm_every)

    def require(self, policy: Policy, certificate: str | None = None) -> Self:
        """Refuse a policy or certificate that this reference was not made for; what differs is named."""
        running = policy_fields(policy)
        names = {*running, *self.policy}
        differing = sorted(name for name in names if self.policy.get(name) != running.get(name))
        if certificate is not None and self.certificate != certificate:
            differing.append("certificate")
        if differing:
            raise ArtifactMismatch(
                f"the drift reference was made for another policy ({', '.join(differing)} differ). Make it "
                "anew: `desist monitor TRACES --certificate FILE --write-reference`."
            )
        return self

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file in one step."""
        target = Path(path)
        with atomic_file(target) as file:
            file.write(self.model_dump_json().encode() + b"\n")
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file. Raises CalibrationError where it is none, or of a version not known here."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValidationError, ValueError) as failure:
            raise CalibrationError(
                f"{path} is no drift reference that this desist reads: {failure}. Make it anew: "
                "`desist monitor TRACES --certificate FILE --write-reference`."
            ) from failure


def reference_path(certificate: str | os.PathLike[str]) -> Path:
    """Where the reference of a certificate file stands: beside it, `NAME.drift`."""
    return Path(certificate).with_suffix(".drift")


def policy_fields(policy: Policy) -> dict[str, Any]:
    """What of a policy decides which part of a trace is seen."""
    give_up = policy.give_up
    beside = {} if give_up is None else {"give_up": give_up.above, "give_up_after": give_up.after}
    return {
        "scorer": policy.scorer,
        "lam": policy.lam,
        "patience": policy.patience,
        "warmup_tokens": policy.warmup_tokens,
        "ema": policy.ema,
        **beside,
    }


def build_reference(
    statistics: ArrayLike,
    policy: Policy,
    *,
    certificate: str = "",
    seed: int = 0,
    names: Sequence[str] = STATISTICS,
) -> DriftReference:
    """Bins and counts from `statistics` [n, k] of calibration traces, one trace a problem.

    The traces are permuted by `seed`, since files are often sorted. A quarter of them (at most 1,024) gives
    the edges and is not counted; the rest is the history. Raises CalibrationError for fewer than `FEWEST`.
    """
    table = np.asarray(statistics, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(names):
        raise CalibrationError(
            f"the statistics have shape {table.shape}; give one row a trace with {', '.join(names)}."
        )
    if np.isnan(table).any():
        raise CalibrationError("a statistic of a calibration trace is not a number. Score the traces again.")
    n = len(table)
    if n < FEWEST:
        raise CalibrationError(f"{n} calibration traces are too few to watch drift; give at least {FEWEST}.")
    table = np.random.default_rng(seed).permutation(table, axis=0)
    n_edges = min(n // _EDGE_SHARE, _MOST_EDGES)
    bins = min(_BINS, n_edges)
    edges, counts = [], []
    for column in table.T:
        # "higher" takes values that occur, so that ties at a common value share a bin with nothing else.
        cuts = np.quantile(column[:n_edges], np.arange(1, bins) / bins, method="higher")
        rising = np.unique(cuts)
        places = np.searchsorted(rising, column[n_edges:], side="left")
        edges.append(tuple(rising.tolist()))
        counts.append(tuple(np.bincount(places, minlength=len(rising) + 1).tolist()))
    return DriftReference(
        statistics=tuple(names),
        edges=tuple(edges),
        counts=tuple(counts),
        n=n - n_edges,
        n_edges=n_edges,
        seed=seed,
        policy=policy_fields(policy),
        certificate=certificate,
    )
