"""What a stop can cost: consistency loss and harm loss, read off the labels of a saved trace.

Consistency: the answer at the stop differs from the full run's. Harm: the full run was right and the
answer at the stop is wrong. Both are 0 where the policy never stops: then the answer IS the full one.
Labels are made at collection by a named judge; nothing is judged here.

A full run cut at max_tokens has no answer of its own. What that means is declared, not guessed:
`no_answer` (the default) keeps the labels, in which "no answer" is an answer like any other, so a stop
that answers is inconsistent; `loss` counts every stop in such a trace as a loss, harm included.
"""

from __future__ import annotations

from typing import Literal, get_args

from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryRecord, Trace

__all__ = ["LOSSES", "TRUNCATED", "Loss", "Truncated", "bad_if_stopped", "require_loss"]

Loss = Literal["consistency", "harm"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
Truncated = Literal["no_answer", "loss"]
TRUNCATED: tuple[Truncated, ...] = get_args(Truncated)


def require_loss(loss: str) -> None:
    """Refuse an unknown loss name."""
    if loss not in LOSSES:
        raise CalibrationError(f"unknown loss {loss!r}. Choose one of {', '.join(LOSSES)}.")


def bad_if_stopped(
    trace: Trace, boundary: BoundaryRecord, loss: Loss, truncated: Truncated = "no_answer"
) -> bool | None:
    """Whether a stop at `boundary` incurs the loss; None where a label for that is missing."""
    if trace.truncated and truncated == "loss":
        return True
    if loss == "consistency":
        return None if boundary.consistent is None else not boundary.consistent
    if trace.full_correct is None:
        return None
    if not trace.full_correct:
        return False
    return None if boundary.correct is None else not boundary.correct
