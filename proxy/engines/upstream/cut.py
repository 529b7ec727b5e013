"""Where a hard budget cuts reasoning that arrives as text: at the next clean place, or after the grace.

Knows characters, cues and hold-off zones, and token counts as far as the server tells them. From the soft
limit on text is held back, so that what is cut away was never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from desist.controller.cues import CueMatcher, CueState
from desist.controller.holdoff import HoldOff

__all__ = ["Cut", "TextCutter"]

_CONTEXT = 16  # characters
_PARAGRAPH = re.compile(r"\S\s*?\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class Cut:
    """`position` reasoning tokens are kept, `rewound` were generated after them; `clean`: at a boundary."""

    position: int
    rewound: int
    clean: bool


class TextCutter:
    """Reads reasoning text with its token count; gives back what may be shown. `cut` is set at the cut.

    `soft`, `hard`: reasoning tokens from which a clean place is looked for, and at which the cut comes
    anyhow. A cut at a cue goes before the cue; the rest of the text read so far is rewound.
    """

    def __init__(self, soft: int, hard: int, cues: tuple[str, ...]) -> None:
        self._soft, self._hard = soft, hard
        self._cues, self._cue = CueMatcher(cues), CueState()
        self._zones = HoldOff()
        self._held, self._began, self._armed_at = "", 0, 0  # text, its first character, tokens before it
        self._read = 0  # characters
        self._kept: list[str] = []
        self._last = 0  # tokens before the newest text
        self.cut: Cut | None = None

    @property
    def kept(self) -> str:
        """All text shown or to be shown."""
        return "".join(self._kept)

    def push(self, text: str, tokens: int) -> str:
        """Read text; `tokens` counts all reasoning tokens up to its end. Returns the text to show."""
        self._cue, cue = self._cues.feed(self._cue, text)
        self._zones.feed(text)
        self._read += len(text)
        before, self._last = self._last, tokens
        if tokens < self._soft:
            return self._show(text)
        if not self._held:
            self._began, self._armed_at = self._read - len(text), before
        self._held += text
        place = None if self._zones.held else self._clean_place(cue)
        if place is not None:
            return self._cut_at(place, tokens, clean=True)
        if tokens >= self._hard:
            return self._cut_at(self._last_gap(tokens), tokens, clean=False)
        return ""

    def flush(self) -> str:
        """The text held back, because thinking ended by itself."""
        text, self._held = self._held, ""
        return self._show(text)

    def _clean_place(self, cue: str | None) -> int | None:
        """The first clean place in the held text: before the cue just read, or after a paragraph."""
        places = []
        if cue is not None:
            start = self._cue.last[0] - self._began
            places.append(start if start >= 0 else len(self._held))
        # The blank line may have begun in text that was shown already.
        shown = self._kept[-1][-_CONTEXT:] if self._kept else ""
        if (paragraph := _PARAGRAPH.search(shown + self._held)) is not None:
            places.append(max(0, paragraph.end() - len(shown)))
        return min(places, default=None)

    def _last_gap(self, tokens: int) -> int:
        """Where to cut the held text at the hard limit: the last white space before it, or there."""
        share = (self._hard - self._armed_at) / max(1, tokens - self._armed_at)
        limit = max(0, min(len(self._held), round(len(self._held) * share)))
        gap = max(self._held.rfind(space, 0, limit) for space in (" ", "\n"))
        return gap if gap > 0 else limit

    def _cut_at(self, place: int, tokens: int, *, clean: bool) -> str:
        dropped = len(self._held) - place
        since = tokens - self._armed_at
        rewound = round(since * dropped / len(self._held)) if self._held else 0
        self.cut = Cut(tokens - rewound, rewound, clean)
        text, self._held = self._held[:place], ""
        return self._show(text)

    def _show(self, text: str) -> str:
        if text:
            self._kept.append(text)
        return text
