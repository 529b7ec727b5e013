"""What a boundary detector remembers between two tokens, and what it asks of the spans it was told.

All values can be copied, so that a detector can go back to an earlier token. Knows no tokens and no rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from desist.controller.cues import CueState
from desist.controller.holdoff import HoldOff
from desist.controller.thinking import BLANK, Span, SpanKind, ThinkState

__all__ = ["DetectorState", "after_opening", "ending"]


@dataclass(slots=True)
class DetectorState:
    """Everything that changes with a token. All fields are values, save `zones`, which is copied."""

    scan: ThinkState
    reopened: bool = False
    tokens: int = 0
    position: int = 0
    boundaries: int = 0
    pending: bytes = b""  # first bytes of a character
    recent: tuple[tuple[int, bool], ...] = ()  # lengths of the last tokens, and whether they were counted
    cue: CueState = field(default_factory=CueState)
    newlines: int = 0  # since the last character that is not white space
    content: bool = False  # text since the last paragraph end
    periods: int = 0  # every_n boundaries passed
    zones: HoldOff = field(default_factory=HoldOff)

    @property
    def thinking(self) -> bool:
        return self.scan.thinking

    @property
    def closed(self) -> bool:
        return self.scan.closed

    def copy(self) -> DetectorState:
        return DetectorState(
            self.scan, self.reopened, self.tokens, self.position, self.boundaries, self.pending, self.recent,
            self.cue, self.newlines, self.content, self.periods, self.zones.copy(),
        )  # fmt: skip


def ending(spans: Sequence[Span]) -> int | None:
    """Where the block was closed, in characters from the first span; None: it was not."""
    place = 0
    for span in spans:
        if span.ends:
            return place
        place += len(span.text)
    return None


def after_opening(spans: Sequence[Span]) -> int:
    """Characters after the tag that opened the block last."""
    length = 0
    for span in reversed(spans):
        if span.kind is not SpanKind.REASONING and span.text.strip(BLANK):
            break
        length += len(span.text)
    return length
