"""Where a text stands between reasoning and answer: the words of the rules of what opens and ends thinking.

The rules are in `tag_rules` (a block between two tags) and `channels` (harmony's messages), and are one for
the parser of texts and for the controller of tokens. Rules have no state: `advance` takes a state and the
next piece of text, of any size, and gives the state after it and what the text was. Every character comes
out exactly once, in some span or in `held`. Knows no tokens, no chunks and no events: callers spell tokens as
text, a tag that is an added token with a mark that no text has.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

__all__ = [
    "BLANK",
    "Rules",
    "Span",
    "SpanKind",
    "Spell",
    "ThinkState",
    "Where",
    "add",
    "advanced",
    "kept",
    "prefix_tail",
    "without_blanks",
]

#: White space that may stand around tags; ASCII only, so that bytes and characters give the same.
BLANK = " \t\n\r\f\v"
#: How a caller of the rules writes a tag.
Spell = Callable[[str], str]


class Where(enum.IntEnum):
    """Where a text stands. Thinking is open in OPENED, THINKING and ASKING."""

    BEFORE = 0  # nothing but white space so far: a block may open
    OPENED = 1  # a block was opened, and nothing but white space stands in it
    THINKING = 2
    ASKING = 3  # in thinking, after the mark of a tool call: a call, or a mention?
    CLOSED = 4  # after a close tag: white space and further close tags are waste, a block may open again
    CALL = 5  # inside the tool call that ended thinking
    CALLED = 6  # after that call: the close tag of the block may still come
    ANSWER = 7  # the rest is answer, whatever it says
    HEADER = 8  # harmony: in the header of a message
    SHOWN = 9  # harmony: in a message for the reader


class ThinkState(NamedTuple):
    """`held`: text at the end of which nothing is certain yet. `closed`: a block was closed at some time.

    `called`: a tool call ended thinking.
    """

    where: Where = Where.BEFORE
    held: str = ""
    closed: bool = False
    called: bool = False

    @property
    def thinking(self) -> bool:
        """Whether what follows is reasoning unless a tag comes."""
        return Where.OPENED <= self.where <= Where.ASKING


class SpanKind(enum.IntEnum):
    """What a piece of text was. WASTE: tags, and white space around them, which no reader is shown."""

    REASONING = 0
    CONTENT = 1
    WASTE = 2


class Span(NamedTuple):
    """Text that is certain. `ends`: it closes the block (a close tag, or the first of a tool call)."""

    kind: SpanKind
    text: str
    ends: bool = False


class Rules(Protocol):
    """What reads a text: tags, or channels."""

    def advance(self, state: ThinkState, text: str, *, final: bool = False) -> tuple[ThinkState, list[Span]]:
        """The state after `text`, and the spans that became certain. `final`: nothing follows."""


def advanced(
    step: Callable[[ThinkState, bool, list[Span]], ThinkState],
    state: ThinkState,
    text: str,
    *,
    final: bool,
) -> tuple[ThinkState, list[Span]]:
    """Take steps for as long as one changes something. What is held at the end of a text is text."""
    if state.where is Where.ANSWER:
        return state, [Span(SpanKind.CONTENT, text)] if text else []
    state = state._replace(held=state.held + text)
    spans: list[Span] = []
    while state.held:
        before = state
        state = step(state, final, spans)
        if state.held == before.held and state.where is before.where:
            break
    if final and state.held:
        kind = SpanKind.REASONING if state.thinking else SpanKind.CONTENT
        spans.append(Span(kind, state.held))
        state = state._replace(held="")
    return state, spans


def prefix_tail(text: str, *tags: str | None) -> int:
    """Length of the longest proper prefix of a tag at the end of `text`."""
    longest = 0
    for tag in tags:
        if not tag:
            continue
        start = text.find(tag[0], max(0, len(text) - len(tag) + 1))
        while start >= 0 and len(text) - start > longest:
            if tag.startswith(text[start:]):
                longest = len(text) - start
                break
            start = text.find(tag[0], start + 1)
    return longest


def without_blanks(text: str, spans: list[Span]) -> str:
    """The text after its leading white space, which is waste."""
    body = text.lstrip(BLANK)
    add(spans, SpanKind.WASTE, text[: len(text) - len(body)])
    return body


def kept(state: ThinkState, kind: SpanKind, keep: int, spans: list[Span]) -> ThinkState:
    """The state that holds only the last `keep` characters; what stood before them is certain."""
    cut = len(state.held) - keep
    add(spans, kind, state.held[:cut])
    return state._replace(held=state.held[cut:])


def add(spans: list[Span], kind: SpanKind, text: str) -> None:
    """Append a span, unless it is empty."""
    if text:
        spans.append(Span(kind, text))
