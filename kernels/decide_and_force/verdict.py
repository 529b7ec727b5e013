"""What is decided at a row: the bits that the stop machine puts out on the device.

The device knows which rule spoke; what the host calls it (probe or agreement, by hand or from elsewhere) the
host knows itself.
"""

from __future__ import annotations

from enum import IntFlag

__all__ = ["RULES", "Verdict"]


class Verdict(IntFlag):
    """Decision at one row, `[R] uint8`; 0 is: go on.

    STOP: thinking is stopped here, the next token is the hand-off's first. HOLD: it would be, but a hold-off
    zone may be open. SCORE, BUDGET, ASKED: the rule that spoke; SCORE alone is a stop that mode "shadow" does
    not make. WITHDRAWN: the row's token is not the hand-off's, so the stop before it is taken back; what else
    is said is a new decision. STOPPED: an earlier row's stop is in force, and by which rule. LOST: the slot's
    state before the first row is not known, so nothing is decided.
    """

    STOP = 1
    HOLD = 2
    SCORE = 4
    BUDGET = 8
    ASKED = 16
    WITHDRAWN = 32
    STOPPED = 64
    LOST = 128


RULES = Verdict.SCORE | Verdict.BUDGET | Verdict.ASKED
