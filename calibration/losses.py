"""What a stop can cost, read off the labels of a saved trace. All losses are 0 where the policy never stops.

Consistency: the answer at the stop differs from the full run's. Harm: the full run was right and the
answer at the stop is wrong. Token regret, a share in [0, 1]: of the run's reasoning, the part that was cut
although the answer still needed it: from a bad stop to the boundary from which the forced answers never
differ from the full one again. Labels are made at collection by a named judge; nothing is judged here.

Where the judge of a trace was asked and could not decide, the stop counts as a loss; a label that nobody
made is missing, and refused later.

A full run cut at max_tokens has no answer of its own. What that means is declared, not guessed: with
`answered` (the default) a stop there that gives an answer is a loss of every kind; `loss` counts every
stop there as one; `no_answer` keeps the labels, in which "no answer" is an answer like any other.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryRecord, Trace

__all__ = [
    "GRADED",
    "LOSSES",
    "PARTS",
    "TRUNCATED",
    "Loss",
    "Truncated",
    "bad_if_stopped",
    "count_unjudged",
    "require_loss",
    "token_regret",
]

Loss = Literal["consistency", "harm", "token-regret"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
GRADED: frozenset[Loss] = frozenset({"token-regret"})
"""Losses that are shares; the others are 0 or 1."""
Truncated = Literal["answered", "no_answer", "loss"]
TRUNCATED: tuple[Truncated, ...] = get_args(Truncated)

PARTS = 1000
"""A graded loss is counted in whole parts of 1/PARTS, rounded up, so that sums and ranks stay exact."""


def require_loss(loss: str) -> None:
    """Refuse an unknown loss name."""
    if loss not in LOSSES:
        raise CalibrationError(f"unknown loss {loss!r}. Choose one of {', '.join(LOSSES)}.")


def bad_if_stopped(
    trace: Trace, boundary: BoundaryRecord, loss: Loss, truncated: Truncated = "answered"
) -> bool | None:
    """Whether a stop at `boundary` incurs the loss (more than 0); None where a label for that is missing."""
    if trace.truncated and truncated != "no_answer":
        # Where no forced answer was kept it is not known to be empty: then it is one.
        return truncated == "loss" or boundary.forced_answer != ""
    if loss != "harm":
        return _lost(trace, boundary, boundary.consistent)
    if trace.full_correct is None:
        return True if trace.gold is not None and _judged(trace) else None
    if not trace.full_correct:
        return False
    return _lost(trace, boundary, boundary.correct)


def token_regret(trace: Trace, bad: list[bool], truncated: Truncated = "answered") -> list[int]:
    """Token regret of a stop at each boundary, in parts of 1/PARTS, from the losses there (`bad`)."""
    if trace.truncated and truncated != "no_answer":
        return [PARTS * wrong for wrong in bad]  # nobody knows how much was wanting
    settled, last, parts = trace.n_reasoning_tokens, True, [0] * len(bad)
    for place in range(len(bad) - 1, -1, -1):
        position = trace.boundaries[place].position
        if last and not bad[place]:
            settled = position
        last = last and not bad[place]
        if bad[place]:
            # At least one part: a bad stop is never free, also at the very end of the reasoning.
            short = max(0, settled - position) / max(1, trace.n_reasoning_tokens)
            parts[place] = min(PARTS, max(1, math.ceil(PARTS * short)))
    return parts


def count_unjudged(trace: Trace, loss: Loss) -> int:
    """Boundaries of `trace` that count as a loss because their judge could not decide."""
    label = "correct" if loss == "harm" else "consistent"
    if not _judged(trace) or (loss == "harm" and trace.full_correct is False):
        return 0
    if loss == "harm" and trace.full_correct is None:
        return len(trace.boundaries) if trace.gold is not None else 0
    return sum(
        getattr(boundary, label) is None and boundary.forced_answer is not None
        for boundary in trace.boundaries
    )


def _lost(trace: Trace, boundary: BoundaryRecord, same: bool | None) -> bool | None:
    if same is not None:
        return not same
    return True if boundary.forced_answer is not None and _judged(trace) else None


def _judged(trace: Trace) -> bool:
    return trace.provenance.get("judge") is not None
