"""Traces as flat arrays of labelled boundaries, and the split of their problems.

Knows traces and labels; no hidden states and no probe. Splits are by problem: two boundaries of one trace,
or two traces of one problem, never stand on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes.base import Target

__all__ = ["EVAL_FOLD", "FOLDS", "LabelledBoundaries", "Unlabelled", "fold_of", "label_boundaries"]

Unlabelled = Literal["error", "skip"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
FOLDS = 10
EVAL_FOLD = 9


def fold_of(problem_id: str, seed: int) -> int:
    """The tenth (0 to 9) a problem falls into; fold 9 is held out for evaluation."""
    seal = hashlib.sha256(f"probe:{seed}:{problem_id}".encode()).digest()
    return int.from_bytes(seal[:8]) % FOLDS


@dataclass(frozen=True, slots=True)
class LabelledBoundaries:
    """n labelled boundaries of the traces they came from, in the order of the traces.

    `trace` [n] numbers into `traces`, `index`, `position`, `label` [n] as in the boundary records.
    """

    traces: tuple[Trace, ...]
    trace: Ints
    index: Ints
    position: Ints
    label: Bools

    def __len__(self) -> int:
        return len(self.label)

    def keys(self) -> list[tuple[str, int]]:
        """(trace_id, index) of each boundary."""
        return [(self.traces[t].trace_id, int(i)) for t, i in zip(self.trace, self.index, strict=True)]

    def folds(self, seed: int) -> Ints:
        """Fold [n] of each boundary's problem."""
        of_trace = np.array([fold_of(trace.problem_id, seed) for trace in self.traces], dtype=np.int64)
        return of_trace[self.trace]

    def problems(self) -> frozenset[str]:
        """Ids of all problems."""
        return frozenset(trace.problem_id for trace in self.traces)

    def select(self, mask: Bools) -> LabelledBoundaries:
        """The boundaries where `mask` [n] holds, with only the traces they need."""
        kept, numbers = np.unique(self.trace[mask], return_inverse=True)
        return LabelledBoundaries(
            traces=tuple(self.traces[number] for number in kept),
            trace=numbers.astype(np.int64),
            index=self.index[mask],
            position=self.position[mask],
            label=self.label[mask],
        )

    def trace_weights(self, power: float) -> Floats:
        """Weight [n] of each boundary: (boundaries of its trace) ** -power, mean 1.

        0 counts every boundary alike, 1 counts every trace alike.
        """
        counts = np.bincount(self.trace, minlength=len(self.traces)).astype(np.float64)
        weights = counts[self.trace] ** -power
        scaled: Floats = weights / weights.mean()
        return scaled


def label_boundaries(
    traces: Iterable[Trace], target: Target, *, unlabelled: Unlabelled = "error"
) -> LabelledBoundaries:
    """Collect the boundaries of `traces` with their `target` label.

    A boundary without a label raises `ProbeError`, or is left out where `unlabelled` is "skip".
    """
    kept: list[Trace] = []
    rows: list[tuple[int, int, int, bool]] = []
    missing, first_missing = 0, ""
    for trace in traces:
        found = [(b, getattr(b, target)) for b in trace.boundaries]
        missing += sum(label is None for _, label in found)
        first_missing = first_missing or next(
            (f"trace {trace.trace_id}, boundary {b.index}" for b, label in found if label is None), ""
        )
        rows += [(len(kept), b.index, b.position, label) for b, label in found if label is not None]
        kept.append(trace)
    if missing and (unlabelled == "error" or not rows):
        raise ProbeError(
            f"{missing} of {missing + len(rows)} boundaries have no label '{target}' (first: "
            f"{first_missing})."
            + (
                " Collect forced answers first"
                if target == "consistent"
                else " Give the problems gold answers"
            )
            + ", or leave such boundaries out with unlabelled='skip'."
        )
    if not rows:
        raise ProbeError(f"the {len(kept)} traces have no boundaries. Collect with cues the model uses.")
    trace_no, index, position, label = (np.array(column) for column in zip(*rows, strict=True))
    return LabelledBoundaries(
        tuple(kept), trace_no.astype(np.int64), index.astype(np.int64), position.astype(np.int64), label
    )
