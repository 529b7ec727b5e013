"""JSON as values that can be compared exactly, and where it stands in a text.

Numbers are exact decimals, so 1, 1.0 and 1e0 are one value and no digit is lost. JSON that means several
things (a key twice, NaN), or that is cut off, raises `Unjudgeable` rather than being guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from typing import Any, Final

from desist.data.judging.verdict import Unjudgeable

__all__ = ["LONGEST", "NOTHING", "TOO_LONG", "find_json", "read_json", "same_json"]

NOTHING: Final = object()
"""What `find_json` and `read_json` give where there is no JSON: None is a value of JSON's."""

LONGEST = 200_000
"""Characters of an answer beyond which nothing is looked for in it: a bound on the time of a verdict."""
TOO_LONG = "it is too long to be read"

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)^[ \t]*\1", re.MULTILINE | re.DOTALL)
_OPENER = re.compile(r"""\{(?=[ \t\r\n]{0,99}["}])|\[(?=[ \t\r\n]{0,99}[]\[{"\d\-tfnNI])""")
_AFTER_LAST = re.compile(r"[\s.!*`)]*\Z")
_CUT = ("Unterminated string", "Invalid \\escape", "Invalid \\uXXXX escape")


class _Decoder:
    """One decoding. What makes a text ambiguous is noted, so that its end is known all the same."""

    def __init__(self) -> None:
        self.fault = ""
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_float=self._number,
            parse_int=self._number,
            parse_constant=self._constant,
        )

    def at(self, text: str, place: int) -> tuple[Any, int]:
        """The value that starts at `place`, and where it ends. Raises `json.JSONDecodeError`."""
        try:
            return self._json.raw_decode(text, place)
        except RecursionError:
            raise Unjudgeable("its JSON is nested too deeply") from None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self.fault = "its JSON has a key twice"
        return found

    def _number(self, text: str) -> Decimal:
        try:
            return Decimal(text)
        except DecimalException:
            self.fault = "its JSON has a number with an impossible exponent"
            return Decimal(0)

    def _constant(self, text: str) -> None:
        self.fault = f"its JSON has {text}"


def read_json(text: str) -> Any:
    """The value of a text that is JSON and nothing else, `NOTHING` where it is none.

    Raises `Unjudgeable` where the JSON means several things.
    """
    decoder, stripped = _Decoder(), text.strip()
    try:
        value, end = decoder.at(stripped, 0)
    except json.JSONDecodeError:
        return NOTHING
    if end < len(stripped):
        return NOTHING
    if decoder.fault:
        raise Unjudgeable(decoder.fault)
    return value


def find_json(text: str) -> Any:
    """The JSON that an answer gives: all of it, else its last fenced block, else its last object in prose.

    An array in prose counts where it ends the text and is not one bare number (which is a reference to a
    source). `NOTHING` where there is none. Raises `Unjudgeable` where it means several things, is cut off,
    or is nested too deeply.
    """
    if len(text) > LONGEST:
        raise Unjudgeable(TOO_LONG)
    if (whole := read_json(text)) is not NOTHING:
        return whole
    for block in reversed(_FENCE.findall(text)):
        value = read_json(block[1])
        if isinstance(value, (dict, list)):
            return value
    last: tuple[Any, str] | None = None
    for value, end, fault in _in_prose(text):
        ends = last is None and _AFTER_LAST.match(text, end) is not None
        if isinstance(value, dict) or (ends and not _bare_number(value)):
            last = value, fault
    if last is None:
        return NOTHING
    if last[1]:
        raise Unjudgeable(last[1])
    return last[0]


def _in_prose(text: str) -> Iterator[tuple[Any, int, str]]:
    """Every outermost object and array in a text: value, end, and what makes it ambiguous."""
    decoder, length, place = _Decoder(), len(text.rstrip()), 0
    while (opener := _OPENER.search(text, place)) is not None:
        decoder.fault, start = "", opener.start()
        try:
            value, place = decoder.at(text, start)
        except json.JSONDecodeError as error:
            # What was read on the way belongs to a broken whole: its parts are no answers of their own.
            cut = error.pos >= length or error.msg.startswith(_CUT)
            if cut and error.pos > start + 1:
                raise Unjudgeable("its JSON is cut off") from None
            place = max(start + 1, error.pos)
            continue
        yield value, place, decoder.fault


def _bare_number(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], Decimal)


def same_json(a: Any, b: Any) -> bool:
    """Whether two values are the same: numbers by value, keys in any order, arrays in theirs."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return type(a) is type(b) and bool(a == b)
