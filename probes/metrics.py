"""How good a score is: rank, calibration and what it would save. Plain functions of arrays.

Labels are True where stopping is safe; scores are higher where it should be safe. A figure that the data
cannot give (one class only) is None, never NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

__all__ = [
    "auroc",
    "expected_calibration_error",
    "position_matched_auroc",
    "saved_at_risk",
    "within_trace_auroc",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def auroc(label: npt.ArrayLike, score: npt.ArrayLike) -> float | None:
    """Area under the ROC curve = P(score of a True > score of a False) + half of P(equal)."""
    labels = np.asarray(label, dtype=bool)
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(np.asarray(score, dtype=np.float64))
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _pooled(label: Bools, score: Floats, group: Ints) -> tuple[float | None, int]:
    """AUROC over pairs inside one group, each pair counted once; and the number of groups with pairs."""
    won = pairs = 0.0
    used = 0
    order = np.argsort(group, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        area = auroc(label[part], score[part])
        if area is not None:
            n_pairs = float(label[part].sum()) * float((~label[part]).sum())
            won, pairs, used = won + area * n_pairs, pairs + n_pairs, used + 1
    return (won / pairs if used else None), used


def within_trace_auroc(label: Bools, score: Floats, trace: Ints) -> tuple[float | None, int]:
    """Mean AUROC inside the traces that hold both labels, and how many these are."""
    order = np.argsort(trace, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(trace[order])) + 1)
    areas = [area for part in parts if (area := auroc(label[part], score[part])) is not None]
    return (float(np.mean(areas)) if areas else None), len(areas)


def position_matched_auroc(
    label: Bools, score: Floats, position: Ints, n_bins: int = 10
) -> tuple[float | None, int]:
    """AUROC over pairs of boundaries in one position bin (quantile bins), and the bins used.

    What is left of the AUROC when how far the trace has got tells nothing.
    """
    edges = np.quantile(position, np.linspace(0, 1, n_bins + 1)[1:-1])
    return _pooled(label, score, np.searchsorted(edges, position, side="right"))


def expected_calibration_error(label: Bools, score: Floats, n_bins: int = 15) -> float:
    """Mean |observed rate - mean score| over equal-width score bins, weighted by count (Naeini 2015)."""
    bins = np.minimum((score * n_bins).astype(int), n_bins - 1)
    count = np.bincount(bins, minlength=n_bins)
    gap = np.bincount(bins, label.astype(float), n_bins) - np.bincount(bins, score, n_bins)
    return float(np.abs(gap[count > 0]).sum() / len(label))


def saved_at_risk(
    label: Bools, score: Floats, position: Ints, trace: Ints, lengths: Ints, risk: float = 0.05
) -> float | None:
    """Share of reasoning tokens saved by the lowest threshold with at most `risk` bad stops per trace.

    First crossing of a strict threshold, chosen on these very traces: a yardstick for comparing probes,
    without forced-answer costs and without any guarantee. `lengths` [traces] are reasoning tokens.
    """
    if not len(label):
        return None
    n_traces = len(lengths)
    order = np.lexsort((position, trace))
    # A trace's critical score: the largest new maximum that falls on a bad boundary. Any threshold
    # below the critical score and not below the maximum before it stops there; take the safe bound.
    critical = np.full(n_traces, -np.inf)
    peak = np.full(n_traces, -np.inf)
    for row in order:
        t = trace[row]
        if score[row] > peak[t]:
            peak[t] = score[row]
            if not label[row]:
                critical[t] = score[row]
    allowed = int(np.floor(risk * n_traces))
    lam = np.sort(critical)[::-1][allowed] if allowed < n_traces else -np.inf
    stop = lengths.astype(np.float64).copy()
    for row in order[::-1]:
        if score[row] > lam:
            stop[trace[row]] = position[row]
    return float(1.0 - stop.sum() / lengths.sum()) if lengths.sum() else None
