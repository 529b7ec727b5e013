"""Harmony's channels (gpt-oss): which message is reasoning, which a tool call, and which is for the reader.

A turn is a row of messages, each `<|channel|>` name `<|message|>` text and an end mark, and between two of
them `<|start|>assistant`. Messages on the channel "analysis" are reasoning; those with a recipient (`to=`)
are tool calls, on whatever channel, and stay as they were written; all others are for the reader.
Source: OpenAI's description of the harmony response format. Knows no tokens and no chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.controller.thinking import (
    BLANK,
    Span,
    SpanKind,
    Spell,
    ThinkState,
    Where,
    add,
    advanced,
    kept,
    prefix_tail,
    without_blanks,
)

__all__ = ["ANALYSIS", "END", "FINAL", "ChannelRules"]

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
#: What opens reasoning after the prompt, and what opens the answer after reasoning was closed.
ANALYSIS = f"{_CHANNEL}analysis{_MESSAGE}"
FINAL = f"{_START}assistant{_CHANNEL}final{_MESSAGE}"
_RECIPIENT = "to="
_BODIES = {
    Where.THINKING: SpanKind.REASONING, Where.SHOWN: SpanKind.CONTENT, Where.CALL: SpanKind.CONTENT,
}  # fmt: skip
_LONGEST = 512  # characters of a header


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """`Rules` of harmony. The fields are its marks, as the caller spells them; use `of`.

    Text without any mark is answer. A header that is longer than 512 characters is none.
    """

    start: str
    channel: str
    message: str
    ends: tuple[str, ...]

    @classmethod
    def of(cls, spell: Spell = str) -> ChannelRules:
        """`spell`: how the caller writes a mark."""
        ends = (spell(END), spell(_CALL), spell(_RETURN))
        return cls(spell(_START), spell(_CHANNEL), spell(_MESSAGE), ends)

    def advance(self, state: ThinkState, text: str, *, final: bool = False) -> tuple[ThinkState, list[Span]]:
        """See `Rules`."""
        kind = _BODIES.get(state.where)
        if kind is not None and text and not state.held and self._plain(text):
            return state, [Span(kind, text)]
        return advanced(self._step, state, text, final=final)

    def _plain(self, text: str) -> bool:
        """Whether no mark begins in the text, as in most."""
        return not any(mark[0] in text for mark in (*self.ends, self.start, self.channel))

    @property
    def _heads(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.message)

    def _step(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        match state.where:
            case Where.BEFORE:
                return self._before(state, final)
            case Where.HEADER:
                return self._header(state, final, spans)
            case Where.CLOSED:
                return self._between(state, final, spans)
            case Where.OPENED:
                body = without_blanks(state.held, spans)
                return state._replace(where=Where.THINKING if body else Where.OPENED, held=body)
            case Where.ANSWER:
                spans.append(Span(SpanKind.CONTENT, state.held))
                return state._replace(held="")
        return self._in_message(state, final, spans)

    def _before(self, state: ThinkState, final: bool) -> ThinkState:
        body = state.held.lstrip(BLANK)
        heads = (*self._heads, _RECIPIENT)
        if body.startswith(heads):
            return state._replace(where=Where.HEADER)
        if not final and any(head.startswith(body) for head in heads):
            return state
        return state._replace(where=Where.ANSWER)

    def _header(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        text, mark = state.held, self.message
        end = text.find(mark, 0, _LONGEST + len(mark))
        if end < 0 and len(text) >= _LONGEST + len(mark):
            return state._replace(where=Where.ANSWER)
        if end < 0:
            cut_off = any(head in text for head in self._heads)
            kind = SpanKind.WASTE if cut_off else SpanKind.CONTENT
            return kept(state, kind, 0 if final else len(text), spans)
        header, rest = text[:end], text[end + len(mark) :]
        whole = header + mark
        if _RECIPIENT in header:
            spans.append(Span(SpanKind.CONTENT, whole))
            return state._replace(where=Where.CALL, held=rest, called=True)
        spans.append(Span(SpanKind.WASTE, whole))
        words = header.partition(self.channel)[2].split()
        analysis = bool(words) and words[0].partition("<")[0] == "analysis"
        return state._replace(where=Where.OPENED if analysis else Where.SHOWN, held=rest)

    def _between(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        body = without_blanks(state.held, spans)
        for end in self.ends:
            if body.startswith(end):
                spans.append(Span(SpanKind.WASTE, end))
                return state._replace(held=body[len(end) :])
        if body.startswith(self._heads):
            return state._replace(where=Where.HEADER, held=body)
        if not final and any(mark.startswith(body) for mark in (*self._heads, *self.ends)):
            return state._replace(held=body)
        return state._replace(where=Where.SHOWN, held=body)

    def _in_message(self, state: ThinkState, final: bool, spans: list[Span]) -> ThinkState:
        """In a body. In thinking a channel's mark is the next header, for models forget the end."""
        text, thinking = state.held, state.where is Where.THINKING
        kind = SpanKind.REASONING if thinking else SpanKind.CONTENT
        marks = (*self.ends, self.start, self.channel) if thinking else (*self.ends, self.start)
        found = min(((at, mark) for mark in marks if (at := text.find(mark)) >= 0), default=None)
        if found is None:
            keep = 0 if final else prefix_tail(text, *marks)
            return kept(state, kind, keep, spans)
        place, mark = found
        closed = state.closed or thinking
        if mark not in self.ends:
            add(spans, kind, text[:place])
            if thinking:
                spans.append(Span(SpanKind.WASTE, "", ends=True))
            return state._replace(where=Where.HEADER, held=text[place:], closed=closed)
        rest = text[place + len(mark) :]
        if state.where is Where.CALL:
            spans.append(Span(SpanKind.CONTENT, text[: place + len(mark)]))
        else:
            add(spans, kind, text[:place])
            spans.append(Span(SpanKind.WASTE, mark, ends=thinking))
        return state._replace(where=Where.CLOSED, held=rest, closed=closed)
