"""Where thinking that arrives as text is cut: places in the text in, the stop machine's decision out.

Knows characters, cues, sentence ends, hold-off zones and token counts as far as the server tells them; the
decision itself is the stop machine's. From the first moment at which a stop may come, text is held back, so
that what is cut away was never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from desist.controller.core import Action, Boundary, Decision, Mode, StopReason
from desist.controller.cues import CueMatcher, CueState
from desist.controller.holdoff import HoldOff
from desist.controller.loops import LoopDetector
from desist.controller.machine import StopMachine

__all__ = ["Cut", "TextWatch"]

_CONTEXT = 64  # characters before new text that a cue or a sentence end may begin in
_PATIENCE = 16  # tokens that a stop by hand or for a loop waits for a clean place
# A line end, or the end of a sentence: its mark with closing quotes, once white space follows.
_ENDS = re.compile(r"\n+|[.!?…][\"'\u201d\u2019)\]*_]*(?=\s)|[。\uff01\uff1f][」』\u201d\u2019\uff09]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """`decision.position` reasoning tokens are kept, `rewound` were generated after them.

    The kept text is that of the first `ids` generated token ids, and then `rest`.
    """

    decision: Decision
    rewound: int
    ids: int
    rest: str


class _Part(NamedTuple):
    """Text that came at once: characters and reasoning tokens before and after it."""

    start: int
    end: int
    before: int
    after: int


class _Place(NamedTuple):
    """A clean place: where a cut would be, in characters, and how many are read when it is known."""

    at: int
    known: int
    kind: str
    text: str


class TextWatch:
    """Reads reasoning text with its token counts; gives back what may be shown. `cut` is set at the cut.

    `loops`: closes thinking that goes round (None: it is let be). A cut at a cue goes before the cue.
    `shadow_loop` tells where a loop was seen by a machine that does not act.
    """

    def __init__(self, machine: StopMachine, cues: tuple[str, ...], loops: LoopDetector | None) -> None:
        self._machine, self._cues, self._loops = machine, CueMatcher(cues), loops
        self._cue: CueState | None = None  # None: not looked for yet
        self._zones = HoldOff()
        self._asked: tuple[StopReason, int] | None = None  # reason, and tokens when it was asked for
        self._read = self._tokens = 0
        self._shown: list[str] = []
        self._n_shown = 0
        self._recent = ""
        self._held = ""
        self._parts: list[_Part] = []  # of the held text
        self._marks: list[tuple[int, int]] = []  # (characters, ids): the text up to there is of these ids
        self._boundaries = 0
        self.cut: Cut | None = None
        self.shadow_loop: Decision | None = None

    @property
    def kept(self) -> str:
        """All text shown or to be shown."""
        return "".join(self._shown)

    @property
    def asked(self) -> bool:
        """Whether a stop was asked for from outside."""
        return self._asked is not None

    def cap(self, mode: Mode) -> None:
        """The operator's kill switch: loops, and limits of "active" alone, end nothing any more."""
        self._machine.cap(mode)
        if mode != "active" and self._asked is not None and self._asked[0] is StopReason.LOOP:
            self._asked = None

    def ask(self, reason: StopReason) -> None:
        """Stop at the next clean place, or soon after. The first request counts."""
        if self._asked is None:
            self._asked = (reason, self._tokens)

    def begin(self, ids: int) -> None:
        """Thinking begins after so many generated ids (those of its opening tag)."""
        if not self._marks:
            self._marks.append((0, ids))

    def push(self, text: str, tokens: int, ids: int | None) -> str:
        """Read text; returns the text to show now.

        `tokens` counts all reasoning tokens up to its end; `ids` all generated ids, None where the ids so far
        spell more than the text so far.
        """
        start, before = self._read, self._tokens
        self._read, self._tokens = start + len(text), max(tokens, before)  # an estimate may be taken back
        self._look_for_loops(text)
        soft = self._machine.soft_limit
        far = self._asked is None and (soft is None or self._tokens < soft)
        if far and not self._held:
            return self._pass(text, ids)
        part = _Part(start, self._read, before, self._tokens)
        places = self._feed(text, part)
        self._recent = (self._recent + text)[-_CONTEXT:]
        if ids is not None:
            self._marks.append((part.end, ids))
        if far:
            return self._show(self._held + text)  # something is held only where a limit was lifted
        self._held += text
        self._parts.append(part)
        self._decide(places, part)
        return self._show(self._held) if self.cut is not None else ""

    def flush(self) -> str:
        """The text held back, because thinking ended by itself."""
        return self._show(self._held)

    def close(self, reason: StopReason) -> None:
        """Thinking is over and all of its text is kept; an answer is still owed."""
        if self.cut is None:
            self.cut = self._cut_at(self._read, Decision(Action.STOP, reason, self._tokens))

    def _pass(self, text: str, ids: int | None) -> str:
        """Show text that no stop can reach, as nearly all is."""
        self._zones.feed(text)
        self._recent = (self._recent + text)[-_CONTEXT:]
        self._shown.append(text)
        self._n_shown = self._read
        if ids is not None:
            self._marks = [(self._read, ids)]
        return text

    def _look_for_loops(self, text: str) -> None:
        if self._loops is None or self._loops.found is not None or not self._loops.feed(text):
            return
        if self._machine.control.mode == "active":
            self.ask(StopReason.LOOP)
        elif self._machine.control.mode == "shadow":
            self.shadow_loop = Decision(Action.STOP, StopReason.LOOP, self._tokens)

    def _feed(self, text: str, part: _Part) -> list[tuple[_Place, bool]]:
        """Read text into cues and zones; the clean places that it shows, and whether a zone is open there."""
        soft = self._machine.soft_limit
        if self._asked is None and (soft is None or part.after < soft):
            self._zones.feed(text)
            return []
        if self._cue is None:
            self._cue = CueState(offset=part.start - len(self._recent))
            self._cue, _ = self._cues.feed(self._cue, self._recent)
        places = []
        self._cue, cue = self._cues.feed(self._cue, text)
        if cue is not None:
            start = self._cue.last[0]
            places.append(_Place(start if start >= self._n_shown else part.end, part.end, "cue", cue))
        window, shift = self._recent + text, part.start - len(self._recent)
        for found in _ENDS.finditer(window):
            at = shift + found.end()
            known = at if window[found.start()] == "\n" else min(at + 1, part.end)
            if known > part.start and at >= self._n_shown and window[: found.end()].strip():
                places.append(_Place(at, known, "paragraph", found.group()))
        told, read = [], part.start
        for place in sorted(places, key=lambda each: each.known):
            self._zones.feed(text[read - part.start : place.known - part.start])
            read = max(read, place.known)
            told.append((place, self._zones.held))
        self._zones.feed(text[read - part.start :])
        return told

    def _decide(self, places: list[tuple[_Place, bool]], part: _Part) -> None:
        machine, tokens = self._machine, part.after
        clean = [place for place, held in places if not held]
        if self._asked is not None and (clean or tokens >= self._asked[1] + _PATIENCE):
            machine.stop_now(self._asked[0], position=tokens)
        if places:
            place = self._best(clean) if clean else places[0][0]
            kind = "cue" if place.kind == "cue" else "paragraph"
            boundary = Boundary(self._boundaries, tokens, kind, place.text)  # type: ignore[arg-type]
            self._boundaries += 1
            decision = machine.at_boundary(boundary, None, held=not clean)
            if decision.stops:
                hard = self._machine.hard_limit
                late = hard is not None and self._position(place.at) > hard
                self.cut = self._cut_at(self._limit(decision) if late or not clean else place.at, decision)
                return
        decision = machine.advance(tokens, held=self._zones.held)
        if decision.stops:
            self.cut = self._cut_at(self._limit(decision), decision)

    def _best(self, clean: list[_Place]) -> _Place:
        """The first place at or after the soft limit, else the last one: a large piece holds many."""
        soft = self._machine.soft_limit or 0
        if self._asked is not None:
            return min(clean, key=lambda place: place.at)
        late = [place for place in clean if self._position(place.at) >= soft]
        return min(late, key=lambda p: p.at) if late else max(clean, key=lambda p: p.at)

    def _limit(self, decision: Decision) -> int:
        """Where a stop cuts that waits no longer: the last white space before the hard limit, or there."""
        hard = self._machine.hard_limit
        if decision.reason is not StopReason.BUDGET or hard is None:
            return self._read
        place = next((_at(part, hard) for part in self._parts if part.after >= hard), self._read)
        held = place - self._n_shown
        if held > 0 and self._held[held - 1].isspace():
            return place
        gap = max(self._held.rfind(space, 0, held) for space in (" ", "\n")) if held > 0 else -1
        return self._n_shown + (gap if gap > 0 else max(0, held))

    def _position(self, place: int) -> int:
        """Reasoning tokens before a character of the held text."""
        for part in self._parts:
            if place < part.end:
                share = (place - part.start) / max(1, part.end - part.start)
                return part.before + round(max(0.0, share) * (part.after - part.before))
        return self._tokens

    def _cut_at(self, place: int, decision: Decision) -> Cut:
        position = min(self._position(place), self._tokens)
        mark = max((mark for mark in self._marks if mark[0] <= place), default=(0, 0))
        text = self.kept + self._held
        rest = text[mark[0] : place]
        self._held = self._held[: place - self._n_shown]
        return Cut(replace(decision, position=position), self._tokens - position, mark[1], rest)

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
            self._n_shown += len(text)
        self._held = ""
        self._parts.clear()
        if self.cut is None and len(self._marks) > 1:
            seen = [mark for mark in self._marks if mark[0] <= self._n_shown]
            self._marks = [*seen[-1:], *(mark for mark in self._marks if mark[0] > self._n_shown)]
        return text


def _at(part: _Part, tokens: int) -> int:
    """The character of a part at which so many tokens are reached."""
    share = (tokens - part.before) / max(1, part.after - part.before)
    return part.start + round(max(0.0, min(1.0, share)) * (part.end - part.start))
