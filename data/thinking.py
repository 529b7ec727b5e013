"""Where thinking ends in a text with think tags.

Knows the tags as plain text; a tag that is quoted (in backticks or quotation marks) is a mention and not
a tag. Knows nothing of tokens: the live matcher works on token ids and stands in the controller.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Thinking", "split_thinking", "without_thinking"]

_TAG = re.compile(r"(?P<close></think(?:ing)?>)|<think(?:ing)?>", re.IGNORECASE)
_QUOTES = frozenset("`'\"“”‘’")  # noqa: RUF001


class Thinking(NamedTuple):
    """`closed` is False where the thinking block was opened and never closed (a cut-off run)."""

    reasoning: str
    answer: str
    closed: bool


def _tags(text: str) -> list[tuple[int, int, bool]]:
    found = []
    for match in _TAG.finditer(text):
        before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        if not (before in _QUOTES and after in _QUOTES and before and after):
            found.append((match.start(), match.end(), match.group("close") is not None))
    return found


def split_thinking(text: str) -> Thinking:
    """Split one model output into reasoning and answer.

    Only the leading block is thinking. A close tag without an open one closes a block that the prompt
    opened. Nested tags are matched; where they do not match up, the last close tag ends the block.
    """
    tags = _tags(text)
    leading = bool(tags) and not tags[0][2] and not text[: tags[0][0]].strip()
    if not leading:
        if tags and tags[0][2]:
            start, end, _ = tags[0]
            return Thinking(text[:start], text[end:], True)
        return Thinking("", text, True)
    depth, begin = 0, tags[0][1]
    for start, end, closes in tags:
        depth += -1 if closes else 1
        if depth == 0:
            return Thinking(text[begin:start], text[end:], True)
    closers = [(start, end) for start, end, closes in tags if closes]
    if closers:
        start, end = closers[-1]
        return Thinking(text[begin:start], text[end:], True)
    return Thinking(text[begin:], "", False)


def without_thinking(text: str) -> str:
    """What a reader of the answer sees: no leading block, and no block that was opened again later."""
    answer = split_thinking(text).answer
    kept, cursor, inside = [], 0, False
    for start, end, closes in _tags(answer):
        if not inside:
            kept.append(answer[cursor:start])
        inside = not closes
        cursor = end
    return "".join(kept) + ("" if inside else answer[cursor:])
