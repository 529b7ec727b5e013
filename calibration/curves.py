"""The curves behind a certificate: risk and savings at every threshold, and the scores of good and bad stops.

Plain numbers, small enough to be kept as JSON beside the certificate, so that a report can be drawn again
without the traces. Knows no drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from desist.calibration.accounting import oracle_rows
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.critical import critical_scores
from desist.calibration.decide import Evidence, gather
from desist.calibration.intervals import clopper_pearson, mean_interval
from desist.calibration.ltt import default_grid
from desist.calibration.paths import Missing, Paths, Sweep, paths_of, sweep
from desist.calibration.problems import one_per_problem
from desist.calibration.scorers import TraceScorer, stored
from desist.data.schema import Trace

__all__ = ["Curves", "calibration_curves", "curves_of"]

_BINS = 20


class Curves(BaseModel):
    """All lists of one length g, thresholds falling, but the histograms (equal bins over [0, 1]).

    `risk`: share of calibration problems lost; `upper`: its exact one-sided upper bound at 1 - delta for
    each threshold by itself; `envelope`: share whose critical score exceeds the threshold; `saved`: share of
    tokens saved, net.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    thresholds: tuple[float, ...]
    risk: tuple[float, ...]
    upper: tuple[float, ...]
    envelope: tuple[float, ...]
    saved: tuple[float, ...]
    good: tuple[int, ...]
    bad: tuple[int, ...]
    oracle_settled: float | None = None
    oracle_first: float | None = None


def calibration_curves(
    certified: Certificate | CannotCertify,
    traces: Sequence[Trace],
    *,
    scorer: TraceScorer | None = None,
    missing: Missing = "refuse",
) -> Curves:
    """The curves of `certified` on the traces that it was calibrated on."""
    kept, _ = one_per_problem(traces, certified.seed)
    if certified.samples == "worst":
        kept = sorted(traces, key=lambda trace: trace.trace_id)
    evidence = gather(certified, kept, scorer or stored(certified.scorer), missing)
    return curves_of(certified, evidence, paths_of(evidence.signals[0], certified.shape(), evidence.problem))


def curves_of(certified: Certificate | CannotCertify, evidence: Evidence, paths: Paths) -> Curves:
    """The curves from arrays that are there already; `paths` under the shape of `certified`."""
    n = paths.n
    table = sweep(paths, default_grid())
    # Thresholds between which nothing changes would only make the file and the drawing heavy.
    steps = np.diff(np.stack([table.losses, table.stopped, table.tokens]), axis=1).any(axis=0)
    keep = np.concatenate([[True], steps]) | np.concatenate([steps, [True]])
    critical = np.sort(paths.per_problem(critical_scores(paths)))
    beyond = n - np.searchsorted(critical, table.grid, side="right")
    two_sided = 1 - 2 * float(certified.delta) if certified.delta < 0.5 else 0.0
    possible = np.isfinite(paths.statistic)
    settled, first = oracle_rows(evidence.seen)
    return Curves(
        thresholds=tuple(table.grid[keep].tolist()),
        risk=tuple(table.risk[keep].tolist()),
        upper=tuple(_upper(table, place, two_sided) for place in np.flatnonzero(keep)),
        envelope=tuple((beyond[keep] / max(1, n)).tolist()),
        saved=tuple(table.saved[keep].tolist()),
        good=_histogram(paths.statistic[possible & ~paths.bad]),
        bad=_histogram(paths.statistic[possible & paths.bad]),
        oracle_settled=settled,
        oracle_first=first,
    )


def _upper(table: Sweep, place: int, level: float) -> float:
    if table.parts is None:
        return clopper_pearson(int(table.losses[place]), table.n, level).high
    return mean_interval(float(table.risk[place]), table.n, level).high


def _histogram(scores: np.ndarray) -> tuple[int, ...]:
    counts, _ = np.histogram(scores, bins=_BINS, range=(0, 1))
    return tuple(counts.tolist())
