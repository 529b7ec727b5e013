"""One policy on saved traces of which not everything is known: the row of a replay table.

What is not known gives None, never a guess; what the text alone can tell (whether a right run was cut
before it first mentions the right answer) is given beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy import int64, percentile
from numpy.typing import NDArray

from desist.calibration.accounting import Share, saved_fraction
from desist.calibration.outcomes import Outcomes
from desist.data.schema import Trace

__all__ = ["ReplayRow", "replay_row"]


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One policy on n saved traces.

    `n_unknown`: stops whose answer no one collected. Accuracies are over the `n_graded` traces whose full
    run was graded, and None as soon as one of those has an unknown stopped answer: the known ones are the
    short ones, and would flatter. `inconsistent`: None likewise. `cut_early`: of the right full runs with
    a known first mention of the right answer, those stopped before it (from the text: a range, no truth).
    `n_given_up`: stops that gave the problem up; `given_up_right`: of the graded traces, those given up
    though the full run came right, which is the loss of giving up. They are no loss in `inconsistent`.
    `tokens_p50`, `tokens_p90`, `tokens_max`: all tokens generated for a trace; a mean hides the long ones.
    """

    policy: str
    n: int
    n_stopped: int
    n_unknown: int
    saved_fraction: float
    n_graded: int
    accuracy_full: float | None
    accuracy_stopped: float | None
    inconsistent: Share | None
    cut_early: Share | None
    threshold: float | None = None
    note: str = ""
    tokens_p50: int | None = None
    tokens_p90: int | None = None
    tokens_max: int | None = None
    n_given_up: int = 0
    given_up_right: Share | None = None


def replay_row(
    policy: str,
    traces: Sequence[Trace],
    outcomes: Outcomes,
    *,
    threshold: float | None = None,
    note: str = "",
) -> ReplayRow:
    graded = outcomes.full_correct >= 0
    unknown = outcomes.stopped & (outcomes.consistent < 0) & (outcomes.stopped_correct < 0)
    known = bool(graded.any() and (outcomes.stopped_correct[graded] >= 0).all())
    same = bool((outcomes.consistent >= 0).all()) and len(outcomes) > 0
    half, most, longest = _lengths(outcomes)
    lost, gone = outcomes.consistent == 0, outcomes.given_up
    wrong = int((gone & (outcomes.full_correct == 1)).sum())
    return ReplayRow(
        policy=policy,
        n=len(traces),
        n_stopped=int(outcomes.stopped.sum()),
        n_unknown=int(unknown.sum()),
        saved_fraction=saved_fraction(outcomes),
        n_graded=int(graded.sum()),
        accuracy_full=float(outcomes.full_correct[graded].mean()) if graded.any() else None,
        accuracy_stopped=float(outcomes.stopped_correct[graded].mean()) if known else None,
        inconsistent=Share.of(int((lost & ~gone).sum()), len(outcomes)) if same else None,
        cut_early=_cut_early(traces, outcomes.kept),
        threshold=threshold,
        note=note,
        tokens_p50=half,
        tokens_p90=most,
        tokens_max=longest,
        n_given_up=int(gone.sum()),
        given_up_right=Share.of(wrong, int(graded.sum())) if gone.any() and graded.any() else None,
    )


def _lengths(outcomes: Outcomes) -> tuple[int | None, int | None, int | None]:
    """Tokens of the middle trace, of the one that nine in ten do not exceed, and of the longest."""
    if not len(outcomes):
        return None, None, None
    half, most, longest = percentile(outcomes.tokens, (50, 90, 100), method="inverted_cdf").tolist()
    return half, most, longest


def _cut_early(traces: Sequence[Trace], kept: NDArray[int64]) -> Share | None:
    """Right full runs that were stopped before their reasoning first mentions the right answer."""
    early = mentioned = 0
    for trace, place in zip(traces, kept, strict=True):
        share = _mention(trace)
        if share is not None and trace.full_correct:
            mentioned += 1
            early += 0 <= place < share * trace.n_reasoning_tokens
    return Share.of(early, mentioned) if mentioned else None


def _mention(trace: Trace) -> float | None:
    """Share of the reasoning (in characters) before the first conclusive mention of the gold answer."""
    extra = trace.provenance.get("extra")
    mentions = extra.get("boundary") if isinstance(extra, Mapping) else None
    if not isinstance(mentions, Mapping) or mentions.get("gold_in_problem"):
        return None
    char = mentions.get("first_gold_conclusive_char")
    return char / len(trace.reasoning) if isinstance(char, int) and trace.reasoning else None
