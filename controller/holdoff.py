"""Hold-off zones: places in the reasoning where thinking must not be cut.

Zones are fenced code, display math ($$, \\[ and \\begin environments) and a JSON object. (A tool call
ends thinking altogether; `boundaries` sees to it.) Knows text only. A zone that is never closed must not
block stopping for ever: display math ends at a blank line, as in TeX, a JSON string at a line end, and
every zone after a stated number of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["OPENING", "SPECIAL", "HoldOff", "held_places"]

_ITEM = re.compile(r'[`~$\\{}"\[\]\n]|[^`~$\\{}"\[\]\n]+')
#: Characters that can open or close a zone, and line ends; text without them changes none.
SPECIAL = re.compile(r'[`~$\\{}"\[\]\n]')
#: Characters with the last of which a zone opens: where none is open, text without them opens none.
OPENING = re.compile(r'[`~${"\[]')
_FENCE = re.compile(r"`{3,}|~{3,}")
_NO_OBJECT_AFTER = re.compile(r"[\w\\^})]")
_LIMITS = {"fence": 16_000, "dollars": 2_000, "bracket": 2_000, "environment": 2_000, "object": 4_000}
_LINE = 64  # characters of the current line that are kept


class HoldOff:
    """Reads text in pieces of any size; `held` tells whether a zone is open now."""

    __slots__ = (
        "_before", "_brace", "_depth", "_dollar", "_ending", "_fence", "_length", "_line", "_opening",
        "_slashes", "_string", "_zone",
    )  # fmt: skip

    def __init__(self) -> None:
        self._zone = ""
        self._length = 0  # characters since the zone was opened
        self._line = ""  # start of the current line
        self._before = ""  # last characters read
        self._slashes = 0  # backslashes just before
        self._dollar = False  # one "$" just before
        self._brace = False  # "{" and white space just before: an object, if a quote comes
        self._string = False  # inside a string of an object
        self._depth = 0  # open objects or environments
        self._ending = False  # in the name of \end{...}
        self._fence = ""
        self._opening = False  # on the line that opened the fence

    @property
    def held(self) -> bool:
        return bool(self._zone)

    def copy(self) -> HoldOff:
        twin = HoldOff.__new__(HoldOff)  # one by one: requests that enter make two, and wait for them
        twin._zone, twin._length, twin._line = self._zone, self._length, self._line
        twin._before, twin._slashes, twin._dollar = self._before, self._slashes, self._dollar
        twin._brace, twin._string, twin._depth = self._brace, self._string, self._depth
        twin._ending, twin._fence, twin._opening = self._ending, self._fence, self._opening
        return twin

    def feed(self, text: str) -> None:
        """Read the next piece of reasoning."""
        if self._zone or self._brace or SPECIAL.search(text):
            for item in _ITEM.findall(text):
                self._step(item)
        elif text:  # most text: no zone is open and none begins
            if len(self._line) < _LINE:
                self._line = (self._line + text)[:_LINE]
            self._before = (self._before + text)[-8:]
            self._slashes, self._dollar = 0, False

    def _step(self, item: str) -> None:
        escaped = self._slashes % 2 == 1
        if item == "\n":
            self._end_line()
        elif len(self._line) < _LINE:
            self._line = (self._line + item)[:_LINE]
        match self._zone:
            case "":
                self._outside(item, escaped)
            case "fence":
                self._in_fence(item)
            case "object":
                self._in_object(item, escaped)
            case _:
                self._in_math(item, escaped)
        if self._zone:
            self._length += len(item)
            if self._length > _LIMITS[self._zone]:
                self._zone = ""
        self._slashes = self._slashes + 1 if item == "\\" else 0
        self._before = (self._before + item)[-8:]

    def _open(self, zone: str) -> None:
        self._zone, self._length, self._depth = zone, 0, 1
        self._dollar = self._brace = self._ending = False

    def _end_line(self) -> None:
        blank = not self._line.strip()
        if self._zone == "fence":
            closing = self._line.strip()
            if not self._opening and len(closing) >= len(self._fence) and set(closing) == {self._fence[0]}:
                self._zone = ""
            self._opening = False
        elif (self._zone == "object" and self._string) or (blank and self._zone not in ("", "object")):
            self._zone = ""
        self._line = ""

    def _outside(self, item: str, escaped: bool) -> None:
        if item in "`~" and _FENCE.fullmatch(self._line.lstrip()):
            self._open("fence")
            self._fence, self._opening = self._line.lstrip(), True
        elif item == "$" and not escaped:
            if self._dollar:
                self._open("dollars")
            else:
                self._dollar = True
            return
        elif item == "[" and escaped:
            self._open("bracket")
        elif item == "{":
            if self._before.endswith("\\begin"):
                self._open("environment")
            else:
                self._brace = not _NO_OBJECT_AFTER.match(self._before[-1:])
        elif item == '"' and self._brace:
            self._open("object")
            self._string = True
        elif not item.isspace():
            self._brace = False
        self._dollar = False

    def _in_fence(self, item: str) -> None:
        if not self._opening or item not in "`~":
            return
        if set(self._line.lstrip()) == {self._fence[0]}:
            self._fence = self._line.lstrip()
        elif item == "`" and self._fence[0] == "`":
            self._zone = ""  # back-ticks after the opening ones: inline code

    def _in_object(self, item: str, escaped: bool) -> None:
        if item == '"' and not (self._string and escaped):
            self._string = not self._string
        elif not self._string and item in "{}":
            self._depth += 1 if item == "{" else -1
            if self._depth == 0:
                self._zone = ""

    def _in_math(self, item: str, escaped: bool) -> None:
        if self._zone == "dollars":
            if item == "$" and not escaped and self._dollar:
                self._zone = ""
                self._dollar = False
            else:
                self._dollar = item == "$" and not escaped
        elif self._zone == "bracket":
            if item == "]" and escaped:
                self._zone = ""
        elif item == "{" and self._before.endswith("\\begin"):
            self._depth += 1
        elif item == "{" and self._before.endswith("\\end"):
            self._depth -= 1
            self._ending = self._depth == 0
        elif item == "}" and self._ending:
            self._zone = ""


def held_places(text: str, places: Iterable[int]) -> tuple[bool, ...]:
    """Whether a zone is open after `text[:place]`, for each place (characters, in rising order)."""
    zones, read, held = HoldOff(), 0, []
    for place in places:
        zones.feed(text[read:place])
        read = max(read, place)
        held.append(zones.held)
    return tuple(held)
