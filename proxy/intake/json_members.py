"""Takes members out of a JSON object, or gives them another value, and leaves every other byte as it is.

Knows JSON's grammar of the outermost object only; what stands inside its values is skipped. To be used on
texts that a JSON parser has accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["edit_members"]

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(rb'[^"{}\[\]]*')
_SCALAR = re.compile(rb"[^,}\]\s]+")


@dataclass(frozen=True, slots=True)
class _Member:
    """`start` is its name's first byte, `value` its value's, `end` comes after it."""

    name: str
    start: int
    value: int
    end: int


def edit_members(text: bytes, change: Callable[[str], bytes | None]) -> bytes:
    """`text`, an object, after `change` of each member: a new value, b"" to remove it, None to keep it.

    A member that stands twice is asked about twice. Raises `ValueError` for a text that is no object.
    """
    members = list(_members(text))
    out = bytearray()
    done = 0  # so much of the text has been dealt with
    last_kept: int | None = None  # where the last member that stays ends in `out`
    for number, member in enumerate(members):
        new = change(member.name)
        if new is None or new:
            out += text[done : member.end] if new is None else text[done : member.value] + new
            done, last_kept = member.end, len(out)
            continue
        out += text[done : member.start]
        if number + 1 < len(members):  # goes with its comma and the space up to the next one
            done = members[number + 1].start
            continue
        done = member.end
        if last_kept is not None:  # the last one goes with the comma before it
            del out[last_kept:]
    return bytes(out) + text[done:]


def _members(text: bytes) -> Iterator[_Member]:
    at = _skip(text, text.startswith(b"\xef\xbb\xbf") * 3)
    if text[at : at + 1] != b"{":
        raise ValueError("the text is no JSON object")
    at = _skip(text, at + 1)
    while text[at : at + 1] != b"}":
        start, at = at, _string_end(text, at)
        name = json.loads(text[start:at])
        at = _skip(text, at)
        if text[at : at + 1] != b":":
            raise ValueError("the text is no JSON object")
        value = _skip(text, at + 1)
        end = _value_end(text, value)
        yield _Member(name, start, value, end)
        at = _skip(text, end)
        if text[at : at + 1] == b",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != b"}":
            raise ValueError("the text is no JSON object")


def _skip(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _string_end(text: bytes, at: int) -> int:
    found = _STRING.match(text, at)
    if found is None:
        raise ValueError("the text is no JSON object")
    return found.end()


def _value_end(text: bytes, at: int) -> int:
    first = text[at : at + 1]
    if first == b'"':
        return _string_end(text, at)
    if first not in (b"{", b"["):
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError("the text is no JSON object")
        return found.end()
    depth = 0
    while at < len(text):
        mark = text[at : at + 1]
        if mark == b'"':
            at = _string_end(text, at)
            continue
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
        at += 1
        if not depth:
            return at
        skipped = _PLAIN.match(text, at)
        at = skipped.end() if skipped else at
    raise ValueError("the text is no JSON object")
