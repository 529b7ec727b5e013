"""The report on a probe: how well its scores rank boundaries of problems it never saw, beside controls.

Knows labels, scores and the card; nothing of networks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes import metrics
from desist.probes.artifact import AnyProbe
from desist.probes.features import HiddenSet
from desist.probes.labels import LabelledBoundaries, Unlabelled, label_boundaries
from desist.probes.scoring import trace_scores

__all__ = ["ProbeReport", "evaluate_probe", "evaluate_scores", "table_scores"]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Figures on held-out problems. None: the data cannot tell (for example one class only).

    `direction_ok`: higher scores are safer, as everywhere in desist. `within_trace_auroc` is the mean over
    the `n_mixed_traces` traces that hold both labels. `saved_at_risk_05`: see `metrics.saved_at_risk`.
    """

    n_problems: int
    n_traces: int
    n_boundaries: int
    base_rate: float
    auroc: float | None
    within_trace_auroc: float | None
    n_mixed_traces: int
    position_matched_auroc: float | None
    n_position_bins: int
    ece: float
    direction_ok: bool
    saved_at_risk_05: float | None
    controls: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            item.name: dict(value) if isinstance(value, Mapping) else value
            for item in dataclasses.fields(self)
            for value in (getattr(self, item.name),)
        }

    def flat(self) -> dict[str, float]:
        """The figures that exist, by dotted name: what a card stores."""
        nested = self.to_dict()
        controls = {f"controls.{name}": value for name, value in nested.pop("controls").items()}
        return {name: float(value) for name, value in (nested | controls).items() if value is not None}


def evaluate_scores(
    table: LabelledBoundaries,
    scores: npt.ArrayLike,
    *,
    controls: Mapping[str, float | None] | None = None,
) -> ProbeReport:
    """Report on `scores` [n] of the boundaries in `table`."""
    score = np.asarray(scores, dtype=np.float64)
    if score.shape != table.label.shape or not np.isfinite(score).all():
        raise ProbeError(
            f"scores of shape {score.shape} for {len(table)} boundaries, {int((~np.isfinite(score)).sum())} "
            "of them not finite. Score every boundary, and look at the hidden states where a score is NaN."
        )
    area = metrics.auroc(table.label, score)
    within, mixed = metrics.within_trace_auroc(table.label, score, table.trace)
    matched, bins = metrics.position_matched_auroc(table.label, score, table.position)
    lengths = np.array([trace.n_reasoning_tokens for trace in table.traces], dtype=np.int64)
    return ProbeReport(
        n_problems=len(table.problems()),
        n_traces=len(table.traces),
        n_boundaries=len(table),
        base_rate=float(table.label.mean()),
        auroc=area,
        within_trace_auroc=within,
        n_mixed_traces=mixed,
        position_matched_auroc=matched,
        n_position_bins=bins,
        ece=metrics.expected_calibration_error(table.label, score),
        direction_ok=area is None or area >= 0.5,
        saved_at_risk_05=metrics.saved_at_risk(table.label, score, table.position, table.trace, lengths),
        controls=controls or {},
    )


def table_scores(
    table: LabelledBoundaries, hidden: HiddenSet, probe: AnyProbe
) -> tuple[LabelledBoundaries, npt.NDArray[np.float64]]:
    """The boundaries that the probe can score, and their scores [n], by the live code path."""
    found = {
        (number, boundary.index): score
        for number, trace in enumerate(table.traces)
        for boundary, score in zip(trace.boundaries, trace_scores(trace, hidden, probe), strict=True)
    }
    scores = [found[int(t), int(i)] for t, i in zip(table.trace, table.index, strict=True)]
    has_score = np.array([score is not None for score in scores], dtype=bool)
    return table.select(has_score), np.array([score for score in scores if score is not None])


def evaluate_probe(
    traces: Iterable[Trace], hidden: HiddenSet, probe: AnyProbe, *, unlabelled: Unlabelled = "error"
) -> ProbeReport:
    """Report on a probe over `traces`, none of whose problems it may have seen.

    Raises `ProbeError` on overlap with the problems of the card: such a figure would flatter.
    """
    table = label_boundaries(traces, probe.card.target, unlabelled=unlabelled)
    overlap = table.problems() & probe.card.problems
    if overlap:
        raise ProbeError(
            f"{len(overlap)} of {len(table.problems())} problems were seen when the probe was made "
            f"(first: {min(overlap)}). Evaluate on other problems."
        )
    scored, scores = table_scores(table, hidden, probe)
    return evaluate_scores(scored, scores)
