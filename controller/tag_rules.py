"""Thinking between two tags: the rules for most models, and what makes a tool call in thinking one.

Knows the texts of tags as the caller spells them, and `thinking`'s states. Knows no tokens and no chunks.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Literal

from desist.controller.thinking import (
    BLANK,
    Span,
    SpanKind,
    ThinkState,
    Where,
    add,
    advanced,
    kept,
    prefix_tail,
    without_blanks,
)

__all__ = ["LETTERS", "MOST_BLANKS", "CallForm", "TagRules"]

CallForm = Literal["markup", "name", "any"]
#: Characters of white space between the mark of a tool call and the call.
MOST_BLANKS = 8
#: With which names begin, of functions and of markup.
LETTERS = frozenset(string.ascii_letters + "_")


@dataclass(frozen=True, slots=True)
class TagRules:
    """A block between `opening` and `closing`, at the very beginning or directly after another block.

    Tags anywhere later are plain text. In thinking the first close tag ends the block, whatever stands
    around it, and so does the mark `tool` of a tool call, if a call follows: `call` "any": always; "name": a
    letter stands directly after it; "markup": `{`, `[` or `<` and a letter stand after it, with at most 8
    characters of white space between. Otherwise it is a mention. After a call that ended thinking
    (up to `tool_end`), one close tag is waste, for it belongs to the block.
    """

    opening: str
    closing: str
    tool: str | None = None
    tool_end: str | None = None
    call: CallForm = "markup"
    mark: str = ""  # with which the caller spells a tag that is an added token

    def advance(self, state: ThinkState, text: str, *, final: bool = False) -> tuple[ThinkState, list[Span]]:
        """See `Rules`."""
        if state.where is Where.THINKING and not state.held and text and self._plain(text):
            return state, [Span(SpanKind.REASONING, text)]
        return advanced(self._step, state, text, final=final)

    def _plain(self, text: str) -> bool:
        """Whether no tag begins in the text, as in most."""
        return self.closing[0] not in text and not (self.tool and self.tool[0] in text)

    def calls(self, after: str) -> bool | None:
        """Whether the text after the mark of a tool call is a call; None: too short to tell."""
        if self.call == "any":
            return True
        if self.call == "name":
            return after[0] in LETTERS if after else None
        body = after.lstrip(BLANK)
        if len(after) - len(body) > MOST_BLANKS:
            return False
        body = body.removeprefix(self.mark)
        if not body or body == "<":
            return None
        return body[0] in "{[" or (body[0] == "<" and body[1] in LETTERS)

    def _step(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        match state.where:
            case Where.BEFORE:
                return self._before(state, final, spans)
            case Where.OPENED:
                return self._opened(state, final, spans)
            case Where.CLOSED:
                return self._closed(state, final, spans)
            case Where.CALL:
                return self._in_call(state, final, spans)
            case Where.CALLED:
                return self._after_call(state, final, spans)
            case Where.ANSWER:
                spans.append(Span(SpanKind.CONTENT, state.held))
                return state._replace(held="")
        return self._in_thinking(state, final, spans)

    def _before(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        body = state.held.lstrip(BLANK)
        blanks = state.held[: len(state.held) - len(body)]
        for tag, where in ((self.opening, Where.OPENED), (self.closing, Where.CLOSED)):
            if body.startswith(tag):
                spans.append(Span(SpanKind.WASTE, blanks + tag))
                return ThinkState(where, body[len(tag) :], where is Where.CLOSED)
        if not final and (self.opening.startswith(body) or self.closing.startswith(body)):
            return state
        return state._replace(where=Where.ANSWER)

    def _opened(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        body = without_blanks(state.held, spans)
        if body.startswith(self.opening):  # the model opens what its prompt has opened
            spans.append(Span(SpanKind.WASTE, self.opening))
            return state._replace(held=body[len(self.opening) :])
        if not final and self.opening.startswith(body):
            return state._replace(held=body)
        return state._replace(where=Where.THINKING, held=body)

    def _in_thinking(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        text, tool = state.held, self.tool
        close = text.find(self.closing)
        mark = text.find(tool) if tool else -1
        if tool and mark >= 0 and (close < 0 or mark < close):
            follows = self.calls(text[mark + len(tool) :])
            if follows is None and not final:
                add(spans, SpanKind.REASONING, text[:mark])
                return state._replace(where=Where.ASKING, held=text[mark:])
            if follows:
                add(spans, SpanKind.REASONING, text[:mark])
                spans.append(Span(SpanKind.CONTENT, tool, ends=True))
                where = Where.CALL if self.tool_end else Where.ANSWER
                return ThinkState(where, text[mark + len(tool) :], True, True)
            add(spans, SpanKind.REASONING, text[: mark + len(tool)])
            return state._replace(where=Where.THINKING, held=text[mark + len(tool) :])
        if close >= 0:
            add(spans, SpanKind.REASONING, text[:close])
            spans.append(Span(SpanKind.WASTE, self.closing, ends=True))
            return state._replace(where=Where.CLOSED, held=text[close + len(self.closing) :], closed=True)
        keep = 0 if final else prefix_tail(text, self.closing, tool)
        return kept(state._replace(where=Where.THINKING), SpanKind.REASONING, keep, spans)

    def _closed(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        body = without_blanks(state.held, spans)
        for tag, where in ((self.opening, Where.OPENED), (self.closing, Where.CLOSED)):
            if body.startswith(tag):
                spans.append(Span(SpanKind.WASTE, tag))
                return state._replace(where=where, held=body[len(tag) :])
        if not final and (self.opening.startswith(body) or self.closing.startswith(body)):
            return state._replace(held=body)
        return state._replace(where=Where.ANSWER, held=body)

    def _in_call(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        end = state.held.find(self.tool_end or "")
        if end < 0:
            keep = 0 if final else prefix_tail(state.held, self.tool_end)
            return kept(state, SpanKind.CONTENT, keep, spans)
        end += len(self.tool_end or "")
        spans.append(Span(SpanKind.CONTENT, state.held[:end]))
        return state._replace(where=Where.CALLED, held=state.held[end:])

    def _after_call(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        text = state.held
        close = text.find(self.closing)
        mark = text.find(self.tool) if self.tool else -1
        if self.tool and mark >= 0 and (close < 0 or mark < close):
            end = mark + len(self.tool)
            spans.append(Span(SpanKind.CONTENT, text[:end]))
            return state._replace(where=Where.CALL, held=text[end:])
        if close >= 0:
            add(spans, SpanKind.CONTENT, text[:close])
            spans.append(Span(SpanKind.WASTE, self.closing))
            return state._replace(where=Where.ANSWER, held=text[close + len(self.closing) :])
        return kept(
            state, SpanKind.CONTENT, 0 if final else prefix_tail(text, self.closing, self.tool), spans
        )
