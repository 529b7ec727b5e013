"""Where a policy stopped its calibration traces and what that cost: per group, per place, the worst ones.

Numbers and ids only; texts stay in the traces. Knows evidence and a threshold; draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from desist.calibration.accounting import Share
from desist.calibration.decide import Evidence
from desist.calibration.paths import Paths

__all__ = [
    "GroupRow",
    "Reliability",
    "WorstLoss",
    "first_stops",
    "group_rows",
    "lost_at",
    "reliability",
    "tokens_at",
    "worst_losses",
]

_BINS = 20
_FEWEST = 10  # traces of a group that is shown by itself


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GroupRow(_Frozen):
    """One group at the threshold for all: traces, stops, loss with its exact 95 % interval, tokens saved."""

    name: str
    n: int
    stopped: int
    lost: Share
    saved: float


class WorstLoss(_Frozen):
    """A trace that the policy would have lost. `score`: what was compared; `cut`: reasoning tokens cut."""

    trace_id: str
    problem_id: str
    source: str
    position: int
    cut: int
    score: float
    right: str = ""
    stopped: str = ""


class Reliability(_Frozen):
    """Per score bin: boundaries, their mean score, and the share at which a stop would be good."""

    counts: tuple[int, ...]
    scores: tuple[float, ...]
    good: tuple[float, ...]
    ece: float


def first_stops(evidence: Evidence, stops: NDArray[np.int64]) -> tuple[int, ...]:
    """Stops by the share of the run's reasoning that they keep, in equal bins over [0, 1]."""
    kept = [
        trace.boundaries[stop].position / max(1, trace.n_reasoning_tokens)
        for trace, stop in zip(evidence.seen, stops, strict=True)
        if stop >= 0
    ]
    counts, _ = np.histogram(kept, bins=_BINS, range=(0, 1))
    return tuple(counts.tolist())


def group_rows(
    evidence: Evidence, paths: Paths, stops: NDArray[np.int64], names: Sequence[str | None]
) -> tuple[GroupRow, ...]:
    """Loss and savings of each group of traces, the worst first; small groups together as "(others)"."""
    labels = np.asarray([name or "(none)" for name in names], dtype=object)
    counts = {name: int((labels == name).sum()) for name in set(labels.tolist())}
    small = [name for name, count in counts.items() if count < _FEWEST]
    labels[np.isin(labels, small)] = "(others)"
    lost, tokens = lost_at(paths, stops), tokens_at(paths, stops)
    rows = []
    for name in sorted(set(labels.tolist())):
        here = labels == name
        rows.append(
            GroupRow(
                name=name,
                n=int(here.sum()),
                stopped=int((stops[here] >= 0).sum()),
                lost=Share.of(int(lost[here].sum()), int(here.sum())),
                saved=float(1 - tokens[here].sum() / max(1, paths.run_tokens[here].sum())),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.lost.value, row.name)))


def worst_losses(
    evidence: Evidence, paths: Paths, stops: NDArray[np.int64], most: int = 12, *, texts: bool = False
) -> tuple[WorstLoss, ...]:
    """The lost traces that were stopped with the highest scores. `texts`: with the two answers."""
    rows = np.flatnonzero(lost_at(paths, stops))
    scores = paths.statistic[rows, stops[rows]]
    found = []
    for place in np.argsort(-scores, kind="stable")[:most]:
        trace = evidence.seen[int(rows[place])]
        boundary = trace.boundaries[int(stops[rows[place]])]
        found.append(
            WorstLoss(
                trace_id=trace.trace_id,
                problem_id=trace.problem_id,
                source=str(trace.provenance.get("source", "")),
                position=boundary.position,
                cut=trace.n_reasoning_tokens - boundary.position,
                score=float(scores[place]),
                right=trace.answer[-200:] if texts else "",
                stopped=(boundary.forced_answer or "")[:200] if texts else "",
            )
        )
    return tuple(found)


def reliability(paths: Paths, bins: int = 10) -> Reliability:
    """How the number that is compared with the threshold relates to the share of good stops.

    Bins hold equally many boundaries. `ece`: mean distance of score and share, weighted by boundaries.
    """
    here = np.isfinite(paths.statistic)
    scores, good = paths.statistic[here], ~paths.bad[here]
    order = np.argsort(scores, kind="stable")
    parts = [rows for rows in np.array_split(order, bins) if len(rows)]
    means = [float(scores[rows].mean()) for rows in parts]
    shares = [float(good[rows].mean()) for rows in parts]
    counts = [len(rows) for rows in parts]
    gaps = sum(n * abs(a - b) for n, a, b in zip(counts, means, shares, strict=True))
    return Reliability(
        counts=tuple(counts), scores=tuple(means), good=tuple(shares), ece=gaps / max(1, sum(counts))
    )


def lost_at(paths: Paths, stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each trace has a loss, [n]."""
    if paths.bad.shape[1] == 0:
        return np.zeros(len(paths), dtype=np.bool_)
    return np.asarray((stops >= 0) & paths.bad[np.arange(len(paths)), stops])


def tokens_at(paths: Paths, stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """All tokens generated for each trace, [n]."""
    if paths.tokens.shape[1] == 0:
        return paths.full_tokens
    return np.where(stops >= 0, paths.tokens[np.arange(len(paths)), stops], paths.full_tokens)
