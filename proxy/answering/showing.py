"""How thinking is shown in a response: in fields of its own, in the content between tags, or not at all.

Knows deltas and whole choices of any route, streamed and complete ones alike: what a client puts together
from a stream is what it would have got whole. Does not know the objects of the routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from desist.proxy.controls.values import ReasoningFormat
from desist.proxy.engines.base import Delta

__all__ = ["Showing", "Shown"]

OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
"""What stands around thinking inside the content, whatever tags the model has: clients look for these."""

_THOUGHTS = frozenset({"reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"})


class Shown(NamedTuple):
    """What a client gets: at most one of the two texts, and the further fields of the message."""

    reasoning: str
    content: str
    extra: dict[str, Any]


class Showing:
    """One response. Keeps for each choice whether its block inside the content is open."""

    def __init__(self, how: ReasoningFormat, field: str) -> None:
        self._how, self._field = how, field
        self._open: set[int] = set()

    @property
    def steady(self) -> bool:
        """Whether all pieces of one channel are alike but for their text."""
        return self._how == "field"

    def fields(self, text: str | None) -> dict[str, Any]:
        """The message field(s) that carry thinking; none where it is shown otherwise."""
        if self._how != "field":
            return {}
        names = ("reasoning", "reasoning_content") if self._field == "both" else (self._field,)
        return dict.fromkeys(names, text)

    def delta(self, index: int, delta: Delta) -> Shown | None:
        """A streamed delta of choice `index`; None: nothing of it is shown."""
        extra = self._extra(delta.extra or {})
        thinking = bool(delta.text) and delta.channel == "reasoning"
        if self._how == "field":
            return Shown(delta.text, "", extra) if thinking else Shown("", delta.text, extra)
        if thinking and self._how == "inline":
            ahead = "" if index in self._open else OPEN
            self._open.add(index)
            return Shown("", ahead + delta.text, extra)
        text = "" if thinking else delta.text
        if text or extra:
            text = self.rest(index) + text
        return Shown("", text, extra) if text or extra or delta.choice_extra else None

    def rest(self, index: int) -> str:
        """What closes the block inside the content of choice `index`, where one is open."""
        if index not in self._open:
            return ""
        self._open.remove(index)
        return CLOSE

    def whole(self, reasoning: str, content: str, extra: Mapping[str, Any]) -> Shown:
        """A complete choice."""
        if self._how == "inline" and reasoning:
            content = OPEN + reasoning + CLOSE + content
        return Shown(reasoning if self._how == "field" else "", content, self._extra(extra))

    def _extra(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        hidden = self._how != "field"
        return {key: value for key, value in extra.items() if not (hidden and key in _THOUGHTS)}
