"""Splits raw text with think tags or channels into reasoning and content, while it streams.

What opens and ends thinking is told by the model's profile (`desist.controller`), as for the controller.
Knows nothing of tokens, models or HTTP. Only text at the end that may be part of a tag is held back, so that
the borders of chunks are kept where no tag forces a cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from desist.controller.profile import ModelProfile
from desist.controller.tag_rules import CallForm, TagRules
from desist.controller.thinking import Rules, Span, SpanKind, ThinkState, Where

__all__ = ["Channel", "Piece", "ThinkSplitter", "split_reasoning"]

Channel = Literal["reasoning", "content"]
_CHANNELS: dict[SpanKind, Channel] = {SpanKind.REASONING: "reasoning", SpanKind.CONTENT: "content"}


class Piece(NamedTuple):
    """Text of one channel. Never empty."""

    channel: Channel
    text: str


class ThinkSplitter:
    """Incremental splitter of one choice: any chunking of a text gives the same reasoning and content.

    Only a block at the very beginning, or directly after another, counts; tags in the answer are plain text.
    White space after a tag is dropped, and so are further close tags directly after the first. A tool call in
    thinking ends it (models go from thinking straight into a call); its mark in prose does not. See
    `TagRules` and `ChannelRules`. `opened`: the prompt has already opened the block. `closed`: the prompt,
    or a stop, has closed it: a block that opens all the same is split off too.
    """

    def __init__(
        self,
        think_open: str = "<think>",
        think_close: str = "</think>",
        tool_call_open: str | None = "<tool_call>",
        *,
        tool_call_close: str | None = "</tool_call>",
        tool_call_form: CallForm = "markup",
        opened: bool = False,
        closed: bool = False,
    ) -> None:
        if not think_open or not think_close:
            raise ValueError("think_open and think_close must not be empty")
        end = tool_call_close if tool_call_open else None
        self._rules: Rules = TagRules(think_open, think_close, tool_call_open, end, tool_call_form)
        self._state = _start(opened, closed)

    @classmethod
    def of(cls, profile: ModelProfile, *, opened: bool = False, closed: bool = False) -> ThinkSplitter:
        """The splitter for a model's profile, tags or channels."""
        return cls._at(profile, _start(opened, closed))

    @classmethod
    def after(cls, profile: ModelProfile, prompt: str) -> ThinkSplitter:
        """The splitter for what a model writes after a rendered prompt."""
        return cls._at(profile, profile.after_prompt(prompt))

    @classmethod
    def _at(cls, profile: ModelProfile, state: ThinkState) -> ThinkSplitter:
        splitter = cls()
        splitter._rules, splitter._state = profile.rules(), state
        return splitter

    @property
    def thinking(self) -> bool:
        """Whether the thinking block is open at the end of what was fed."""
        return self._state.thinking

    @property
    def closed(self) -> bool:
        """Whether a thinking block was closed."""
        return self._state.closed

    @property
    def called(self) -> bool:
        """Whether a tool call ended the thinking."""
        return self._state.called

    @property
    def held(self) -> str:
        """What was fed and is not certain yet."""
        return self._state.held

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain after `text`."""
        self._state, spans = self._rules.advance(self._state, text)
        return _pieces(spans)

    def finish(self) -> list[Piece]:
        """The pieces held back at the end of the text: an unfinished tag is text."""
        self._state, spans = self._rules.advance(self._state, "", final=True)
        return _pieces(spans)


def _start(opened: bool, closed: bool) -> ThinkState:
    if opened:
        return ThinkState(Where.OPENED)
    return ThinkState(Where.CLOSED, closed=True) if closed else ThinkState()


def _pieces(spans: Iterable[Span]) -> list[Piece]:
    """Spans of one channel that follow each other as one piece; waste and empty spans are left out."""
    pieces: list[Piece] = []
    for span in spans:
        channel = _CHANNELS.get(span.kind)
        if channel is None:
            continue
        if pieces and pieces[-1].channel == channel:
            pieces[-1] = Piece(channel, pieces[-1].text + span.text)
        else:
            pieces.append(Piece(channel, span.text))
    return pieces


def split_reasoning(chunks: Iterable[str], splitter: ThinkSplitter | None = None) -> tuple[str, str]:
    """(reasoning, content) of a whole text given in chunks."""
    splitter = splitter or ThinkSplitter()
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.finish()
    return (
        "".join(piece.text for piece in pieces if piece.channel == "reasoning"),
        "".join(piece.text for piece in pieces if piece.channel == "content"),
    )
