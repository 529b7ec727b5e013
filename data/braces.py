r"""Brace-safe reading of LaTeX: matching braces, arguments, splitting at the top level.

Knows `{}`, `()`, `[]`, `\{` and `\}`; knows nothing of what an expression means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = [
    "balanced",
    "boxed_arguments",
    "closing_brace",
    "split_top_level",
    "top_level_tokens",
    "without_open_box",
]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{\s*\}")
_BARE_ARGUMENT = re.compile(r"\\[A-Za-z]+|[^\s\\{}$.,;]+(?:[.,]\d+)*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)
_OPENERS = frozenset({"{", "(", "[", r"\{", r"\lbrace", r"\langle", r"\lfloor", r"\lceil"})
_CLOSERS = frozenset({"}", ")", "]", r"\}", r"\rbrace", r"\rangle", r"\rfloor", r"\rceil"})


def closing_brace(text: str, start: int) -> int | None:
    r"""Index of the `}` that closes the `{` at `start`, or None. `\{` and `\}` are letters, not braces."""
    depth, index, end = 0, start, len(text)
    while index < end:
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return None


def _pairs(text: str) -> dict[int, int]:
    """The closing brace of each opening one that has one, in one pass."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def balanced(text: str) -> bool:
    """Whether every `{` has its `}` and none closes before it opens."""
    depth = 0
    for token in _TOKEN.findall(text):
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def boxed_arguments(text: str) -> Iterator[tuple[int, int, str]]:
    r"""Start, end and argument of each `\boxed` and `\fbox`, the last one first.

    Unbalanced and empty ones are left out.

    `\boxed 5` without braces gives the bare word after it.
    """
    boxes = list(_BOX.finditer(text))
    pairs = _pairs(text) if boxes else {}
    for match in reversed(boxes):
        start = match.end()
        if text.startswith("{", start):
            close = pairs.get(start)
            argument, end = (None, start) if close is None else (text[start + 1 : close], close + 1)
        else:
            bare = _BARE_ARGUMENT.match(text, start)
            argument = bare.group() if bare and match.group()[-1].isspace() else None
            end = bare.end() if bare else start
        if argument and argument.strip():
            yield match.start(), end, argument.strip()


def without_open_box(text: str) -> str:
    """The text up to a box that is never closed (its content was cut off), and without empty boxes."""
    text = _EMPTY_BOX.sub("", text)
    pairs = _pairs(text)
    for match in _BOX.finditer(text):
        if text.startswith("{", match.end()) and match.end() not in pairs:
            return text[: match.start()]
    return text


def top_level_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Offsets and tokens (a character or a LaTeX command) that stand outside all brackets."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _CLOSERS:
            depth = max(0, depth - 1)
        elif token in _OPENERS:
            depth += 1
        elif depth == 0:
            yield match.start(), token


def split_top_level(text: str, separators: frozenset[str]) -> list[str]:
    """Split at the separators (single tokens) that stand outside all brackets."""
    parts, start = [], 0
    for offset, token in top_level_tokens(text):
        if token in separators:
            parts.append(text[start:offset])
            start = offset + len(token)
    parts.append(text[start:])
    return [part.strip() for part in parts]
