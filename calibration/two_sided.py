"""Giving up: a second threshold, below which a problem is judged hopeless, with a risk of its own.

The give-up side is the policy's own shape on 1 - score: a problem is given up at the first boundary, not
before `give_up_after` tokens, where the smoothed value of 1 - score has exceeded the give-up threshold for
`patience` boundaries. Its loss: the full run would have come right. The two sides are certified apart, each
with half of delta, and hold together for the policy that does both: where one side ends the run first the
other can only lose less. Where both would end it at one boundary the stop goes before. The upper and the
lower threshold of "Conformal Thinking" (2026), with an exact order statistic for the lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from desist.calibration.critical import maximum_scores
from desist.calibration.pac import pac_threshold
from desist.calibration.paths import Paths, paths_of
from desist.calibration.plan import Plan
from desist.calibration.signals import Signals
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["come_right", "give_up_paths", "give_up_threshold", "two_sided_stops"]


def come_right(traces: Sequence[Trace]) -> NDArray[np.bool_]:
    """Whether each full run came right, [n]. A run cut by the token limit without an answer did not.

    Raises CalibrationError where that was not judged.
    """
    unknown = [trace.trace_id for trace in traces if trace.full_correct is None and not trace.truncated]
    if unknown:
        raise CalibrationError(
            f"{len(unknown)} full runs were not judged (first: {unknown[0]}): whether a problem would have "
            "come right needs their verdict. Give gold answers, or leave out give_up_alpha."
        )
    return np.asarray([bool(trace.full_correct) for trace in traces], dtype=np.bool_)


def give_up_paths(
    plan: Plan, signals: Signals, right: NDArray[np.bool_], problem: NDArray[np.int64] | None = None
) -> Paths:
    """Paths of giving up: statistic of 1 - score, and a loss wherever the full run came right."""
    mirrored = replace(
        signals,
        scores=1 - signals.scores,
        bad=np.broadcast_to(right[:, None], signals.bad.shape),
        parts=None,
    )
    shape = replace(plan.shape(), warmup_tokens=plan.give_up_after)
    return paths_of(mirrored, shape, problem)


def give_up_threshold(plan: Plan, paths: Paths) -> float | None:
    """The give-up threshold (give up iff the statistic of 1 - score exceeds it); None: cannot certify."""
    if plan.give_up_alpha is None:
        return None
    return pac_threshold(paths.per_problem(maximum_scores(paths)), plan.give_up_alpha, plan.side_delta)


def two_sided_stops(
    upper: Paths, lam: float | None, lower: Paths, give_up: float | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the policy with both thresholds ends each run (-1: nowhere), and whether that is giving up."""
    stop, gone = upper.stops(lam), lower.stops(give_up)
    given_up = (gone >= 0) & ((stop < 0) | (gone < stop))
    return np.where(given_up, gone, stop), given_up
