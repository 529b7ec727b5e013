"""The problem behind a trace: its identity, one trace of each, and the refusal of problems seen before.

The problem is what is exchangeable, so it is what a guarantee counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from desist.data.splits import problem_id

__all__ = ["number_problems", "one_per_problem", "problem_hash", "refuse_overlap"]


def problem_hash(trace: Trace) -> str:
    """Identity of the problem behind a trace: by its text where there is one, else its id."""
    return problem_id(trace.problem) if trace.problem.strip() else trace.problem_id


def one_per_problem(traces: Iterable[Trace], seed: int = 0) -> tuple[list[Trace], int]:
    """One trace of each problem, picked by hash (never by its content), and how many were left out."""
    chosen: dict[str, tuple[bytes, Trace]] = {}
    count = 0
    for trace in traces:
        count += 1
        rank = hashlib.sha256(f"{seed}:{trace.trace_id}".encode()).digest()
        key = problem_hash(trace)
        if key not in chosen or rank < chosen[key][0]:
            chosen[key] = (rank, trace)
    kept = [trace for _, trace in chosen.values()]
    return kept, count - len(kept)


def refuse_overlap(traces: Iterable[Trace], forbidden: Collection[str], what: str = "training") -> None:
    """Raise CalibrationError where a problem of `traces` is among the `forbidden` problem hashes."""
    known = frozenset(forbidden)
    seen = sorted({t.problem_id for t in traces if t.problem_id in known or problem_hash(t) in known})
    if seen:
        raise CalibrationError(
            f"{len(seen)} problems were used in {what} already, for example {', '.join(seen[:3])}. "
            "Calibrate on problems that the probe has never seen: the guarantee is void otherwise."
        )


def number_problems(traces: Sequence[Trace]) -> NDArray[np.int64]:
    """The number of each trace's problem, from 0 in order of appearance, [n]."""
    numbers: dict[str, int] = {}
    return np.asarray(
        [numbers.setdefault(problem_hash(trace), len(numbers)) for trace in traces], dtype=np.int64
    )
