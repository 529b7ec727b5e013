"""What the drift detector sees of a trace: four numbers that need no label and no text.

A trace is taken as the ACTIVE policy leaves it: cut at its stop, or at its would-be stop where it ran on
(shadow, audit). Calibration traces are replayed under the same policy, since stopped traces show fewer
scores, and selected ones: full calibration traces against stopped live ones would be a change by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from desist.calibration.paths import restrict
from desist.controller.core import Control, Policy
from desist.controller.replay import replay_trace
from desist.controller.scorers import StoredScore
from desist.data.schema import BoundaryKind, Trace

__all__ = ["NO_SCORE", "STATISTICS", "replayed_statistics", "trace_statistics"]

STATISTICS = ("reasoning_tokens", "first_score", "mean_score", "top_score")
NO_SCORE = -1.0
"""What stands for the score of a trace without scored boundaries: below every score."""


def trace_statistics(
    scored: Iterable[tuple[int, float | None]], stop: int | None, reasoning_tokens: int
) -> tuple[float, ...]:
    """The statistics, in the order of `STATISTICS`.

    `scored`: position and score of each boundary in order (None or NaN: no evidence, left out). `stop`:
    position of the stop or would-be stop; None: thinking ended by itself, after `reasoning_tokens`.
    """
    end = reasoning_tokens if stop is None else stop
    scores = [score for position, score in scored if score is not None and score == score and position <= end]
    if not scores:
        return (float(end), NO_SCORE, NO_SCORE, NO_SCORE)
    return (float(end), scores[0], sum(scores) / len(scores), max(scores))


def replayed_statistics(
    traces: Iterable[Trace],
    policy: Policy,
    *,
    kinds: Collection[BoundaryKind] | None = None,
    handoff_tokens: int = 0,
    min_answer_tokens: int = 256,
) -> Iterator[tuple[float, ...]]:
    """Statistics of saved traces as `policy` would have left them, by the controller's own replay."""
    scorer = StoredScore(policy.scorer)
    control = Control("active", policy)
    for trace in traces:
        seen = restrict(trace, kinds)
        stop = replay_trace(
            seen, control, scorer, handoff_tokens=handoff_tokens, min_answer_tokens=min_answer_tokens
        ).decision
        yield trace_statistics(
            _scores(seen, scorer), None if stop is None else stop.position, trace.n_reasoning_tokens
        )


def _scores(trace: Trace, scorer: StoredScore) -> Sequence[tuple[int, float | None]]:
    return [(boundary.position, scorer(trace, boundary)) for boundary in trace.boundaries]
