"""A verdict on two answers: equal, different, or unjudgeable, with the reason.

Reasons are few and hold no text of an answer, so that they can be counted and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DIFFERENT", "EQUAL", "Unjudgeable", "Verdict", "different", "unjudgeable"]

Outcome = Literal["equal", "different", "unjudgeable"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge found. `reason`: why, in words; always given where the outcome is "unjudgeable"."""

    outcome: Outcome
    reason: str = ""

    @property
    def same(self) -> bool | None:
        """As a label of a trace: True, False, or None where the judge could not decide."""
        return None if self.outcome == "unjudgeable" else self.outcome == "equal"


EQUAL = Verdict("equal")
DIFFERENT = Verdict("different")


def different(reason: str) -> Verdict:
    return Verdict("different", reason)


def unjudgeable(reason: str) -> Verdict:
    return Verdict("unjudgeable", reason)


class Unjudgeable(Exception):
    """Raised on the way to a verdict where an answer cannot be judged; its text is the reason."""
