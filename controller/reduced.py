"""What of a boundary detector's state can still matter to what it will find: few states stand for all.

Knows characters, lines, cues under way, and whether a tool call may follow. Knows no numbers (positions,
counts) and no hold-off zones.
"""

from __future__ import annotations

from typing import NamedTuple

from desist.controller.cues import CueState
from desist.controller.detector_state import DetectorState
from desist.controller.thinking import ThinkState, Where
from desist.controller.token_signatures import OTHER, Signatures

__all__ = ["AFTER_TEXT", "BEFORE", "CLOSED", "OPENED", "Reduced"]

_NONE = (-1, -1)  # no hit, as `CueState` has it
_PASSED = 2**62  # periods that were passed already: "every_n" is never due


class Reduced(NamedTuple):
    """A state. Use `of`, or one of the constants."""

    tail: str  # one character, and after it the cues under way
    last: tuple[int, int] = _NONE  # the newest hit, if it is among them
    line: int = 0  # 0: no text since the last paragraph; else 1 + line ends since the last text
    pending: bytes = b""  # first bytes of a character
    asked: str | None = None  # after the mark of a tool call: what stands there, white space as spaces

    @classmethod
    def of(cls, state: DetectorState, signatures: Signatures, mark: str | None = None) -> Reduced:
        """What matters of a detector's state. `mark`: of a tool call, as the detector's rules read it."""
        scan = state.scan
        if not scan.thinking:
            return BEFORE if scan.where is Where.BEFORE else CLOSED
        asked = None
        if scan.where is Where.ASKING:
            after = scan.held[len(mark or "") :]
            asked = " " * len(after.rstrip("<")) + "<" * after.endswith("<")
        pending = b""
        if state.pending:
            pending, matters = signatures.unfinished(state.pending)
            if not matters:  # whatever the character becomes, it ends all cues, and it is text
                return AFTER_TEXT._replace(pending=pending, asked=asked)
        cue = state.cue
        # No character has stood before the first one, which is as good as one that is in no word.
        text, offset = (cue.tail, cue.offset) if cue.offset else (OTHER + cue.tail, -1)
        gone = 0 if cue.offset else max(0, len(text) - signatures.kept)  # as the matcher forgets
        text, offset = text[gone:], offset + gone
        tail, cut = signatures.under_way(text)
        since, number = cue.last[0] - offset - cut, cue.last[1]
        return cls(
            tail,
            (1 + since, number) if since > 0 else _NONE,
            1 + state.newlines if state.content else 0,
            pending,
            asked,
        )

    def restored(self, mark: str | None = None) -> DetectorState:
        """A state that reduces to this one."""
        scan = ThinkState(Where.BEFORE if self == BEFORE else Where.THINKING)
        if self == CLOSED:
            scan = ThinkState(Where.ANSWER, closed=True)
        elif self.asked is not None:
            scan = ThinkState(Where.ASKING, (mark or "") + self.asked)
        return DetectorState(
            scan,
            pending=self.pending,
            cue=CueState(self.tail, 1, self.last),
            newlines=max(0, self.line - 1),
            content=self.line > 0,
            periods=_PASSED,
        )


#: Thinking has not begun.
BEFORE = Reduced("")
#: Thinking has ended, or the answer began without any. All tokens are passed over from here on.
CLOSED = Reduced("", line=-1)
#: Thinking has just begun.
OPENED = Reduced(OTHER)
#: After a character that is in no word.
AFTER_TEXT = Reduced(OTHER, line=1)
