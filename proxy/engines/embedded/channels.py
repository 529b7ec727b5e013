"""The text of one generation: bytes of tokens in, readable text of one channel out.

Knows UTF-8 and stop strings; nothing of tokens, models or thinking.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Channel"]


class Channel:
    """One channel of text. Characters and stop strings that are not complete are held back.

    `stops` end the text before their first occurrence. `trim` drops white space at the
    beginning.
    """

    def __init__(self, stops: Sequence[str] = (), *, trim: bool = False) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = tuple(stop for stop in stops if stop)
        self._trim = trim
        self._parts: list[str] = []
        self._held = ""
        self.n_chars = 0
        self.ended = False

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._parts)

    def feed(self, data: bytes) -> str:
        """Read the bytes of one more token; the text that may be shown now."""
        return "" if self.ended else self._release(self._decode(data))

    def skip(self) -> str:
        """Pass over a token that is not shown; it ends a character that is not complete."""
        return "" if self.ended else self._release(self._decode(b"", True))

    def write(self, text: str) -> str:
        """Add text that was not generated (the opening of an answer form)."""
        return "" if self.ended else self._release(text)

    def finish(self) -> str:
        """What was held back, at the end of the generation."""
        if self.ended:
            return ""
        text = self._release(self._decode(b"", True))
        rest, self._held = self._held, ""
        self._keep(rest)
        self.ended = True
        return text + rest

    def cut(self, n_chars: int) -> None:
        """End the text after its first `n_chars` characters."""
        kept = self.text[:n_chars]
        self._parts, self.n_chars, self._held, self.ended = [kept], len(kept), "", True

    def _release(self, text: str) -> str:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if not self._stops:
            self._keep(text)
            return text
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            text, self._held, self.ended = text[: min(found)], "", True
        else:
            keep = len(text) - max(_overlap(text, stop) for stop in self._stops)
            text, self._held = text[:keep], text[keep:]
        self._keep(text)
        return text

    def _keep(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self.n_chars += len(text)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, but is not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
