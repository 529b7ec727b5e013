"""What reading a token means: the bits that the token automaton puts out and that the kernels pass on."""

from __future__ import annotations

from enum import IntFlag

__all__ = ["Flag"]


class Flag(IntFlag):
    """Output of one token, `[R] uint8`.

    BOUNDARY: a boundary is completed here. THINKING: still inside thinking after this token. COUNTED: the
    token counts as reasoning. WHOLE: it ends inside no character and no half-written tag, so thinking may be
    cut here. ZONE: it holds a character that may open or close a hold-off zone. LOST: the slot's state before
    the first row is not known, so nothing else is.
    """

    BOUNDARY = 1
    THINKING = 2
    COUNTED = 4
    WHOLE = 8
    ZONE = 16
    LOST = 32
