"""Boundaries found in the text alone, for traces that come without token ids.

Knows cue words and paragraph ends as text, and estimates token positions from characters. The live
matcher works on token ids; positions from here are estimates and are marked so in the provenance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from desist.data.schema import BoundaryKind, BoundaryRecord

__all__ = ["CHARS_PER_TOKEN", "boundaries_at", "estimate_tokens", "position_of", "text_boundaries"]

CHARS_PER_TOKEN = 4
_PLACE = re.compile(
    r"(?P<paragraph>\n[ \t]*\n\s*)|\b(?P<cue>wait|hmm+|alternatively|let me double[- ]check)\b", re.IGNORECASE
)


def estimate_tokens(text: str) -> int:
    """A rough token count: one token for four characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def position_of(char: int, n_chars: int, n_tokens: int) -> int:
    """The token position at a character offset, in proportion: 0 at the start, `n_tokens` at the end."""
    return round(char * n_tokens / n_chars) if n_chars else 0


def text_boundaries(reasoning: str, n_tokens: int) -> tuple[BoundaryRecord, ...]:
    """Cues and paragraph ends inside the reasoning; each place lies after what marks it.

    A paragraph break before the first or after the last word is none.
    """
    first, last = len(reasoning) - len(reasoning.lstrip()), len(reasoning.rstrip())
    places: list[tuple[int, BoundaryKind, str]] = [
        (match.end(), "paragraph" if match.group("paragraph") else "cue", match.group())
        for match in _PLACE.finditer(reasoning)
        if match.start() >= first and match.end() <= last
    ]
    return boundaries_at(places, len(reasoning), n_tokens)


def boundaries_at(
    places: Sequence[tuple[int, BoundaryKind, str]], n_chars: int, n_tokens: int
) -> tuple[BoundaryRecord, ...]:
    """Boundary records at character offsets (ascending), positions in proportion."""
    return tuple(
        BoundaryRecord(index, position_of(char, n_chars, n_tokens), char, kind, text, {})
        for index, (char, kind, text) in enumerate(places)
    )
