"""Splits raw text with think tags into reasoning and content, while it streams.

Knows tags as text; nothing of tokens, models or HTTP. Only text that may be the beginning of a tag is held
back, so that chunk borders are kept where no tag forces a cut.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["Piece", "ThinkSplitter", "split_reasoning"]

Channel = Literal["reasoning", "content"]


class Piece(NamedTuple):
    """Text of one channel. Never empty."""

    channel: Channel
    text: str


class _State(enum.Enum):
    START = enum.auto()  # nothing but white space was seen: a thinking block may open
    THINKING = enum.auto()
    CLOSED = enum.auto()  # just closed: white space and further close tags are swallowed
    CONTENT = enum.auto()  # the answer; tags in it are plain text


class ThinkSplitter:
    """Incremental splitter: any chunking of the same text gives the same reasoning and content.

    Only a block at the very beginning counts; tags in the answer are plain text. White space around the
    tags is dropped, and so are further close tags directly after the first. `<tool_call>` directly followed
    by `{` or `<` inside thinking ends it (models go from thinking straight into a call); the same word in
    prose does not. `opened`: the prompt has already opened the block. `closed`: the prompt, or a stop, has
    closed it: a block that opens all the same is split off too.
    """

    def __init__(
        self,
        think_open: str = "<think>",
        think_close: str = "</think>",
        tool_call_open: str | None = "<tool_call>",
        *,
        opened: bool = False,
        closed: bool = False,
    ) -> None:
        if not think_open or not think_close:
            raise ValueError("think_open and think_close must not be empty")
        self._open, self._close, self._tool = think_open, think_close, tool_call_open
        self._state = _State.THINKING if opened else _State.CLOSED if closed else _State.START
        self._skip_space = opened
        self._tail_close = False
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Whether the thinking block is open at the end of what was fed."""
        return self._state is _State.THINKING

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain after `text`."""
        return self._run(text, final=False)

    def finish(self) -> list[Piece]:
        """The pieces held back at the end of the text: an unfinished tag is text."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces, final):
            pass
        return pieces

    def _step(self, pieces: list[Piece], final: bool) -> bool:
        """Consume from the held text; False when no more is certain."""
        if self._state is _State.START:
            return self._at_start(pieces, final)
        if self._state is _State.CLOSED:
            return self._after_close(final)
        if self._state is _State.THINKING:
            return self._in_thinking(pieces, final)
        return self._in_content(pieces, final)

    def _at_start(self, pieces: list[Piece], final: bool) -> bool:
        body = self._held.lstrip()
        if body.startswith(self._open):
            self._enter(_State.THINKING, body[len(self._open) :])
            self._skip_space = True
            return True
        if not final and self._open.startswith(body):
            return False
        self._state = _State.CONTENT
        return True

    def _after_close(self, final: bool) -> bool:
        body = self._held.lstrip()
        if body.startswith(self._close):
            self._held = body[len(self._close) :]
            return True
        if body.startswith(self._open):
            self._enter(_State.THINKING, body[len(self._open) :])
            self._skip_space = True
            return True
        if not final and (self._close.startswith(body) or self._open.startswith(body)):
            self._held = body
            return False
        self._enter(_State.CONTENT, body)
        return True

    def _in_thinking(self, pieces: list[Piece], final: bool) -> bool:
        if self._skip_space:
            self._held = self._held.lstrip()
            self._skip_space = not self._held
            if not self._held:
                return False
        close = self._held.find(self._close)
        call = self._find_call(self._held, close)
        if call >= 0:
            self._emit(pieces, "reasoning", self._held[:call].rstrip())
            self._enter(_State.CONTENT, self._held[call:])
            self._tail_close = True
            return True
        if close >= 0:
            self._emit(pieces, "reasoning", self._held[:close].rstrip())
            self._enter(_State.CLOSED, self._held[close + len(self._close) :])
            return True
        keep = 0 if final else self._uncertain(self._held)
        self._release(pieces, "reasoning", keep)
        return False

    def _in_content(self, pieces: list[Piece], final: bool) -> bool:
        if self._tail_close:  # after a call inside thinking the block's close tag may still come, once
            close = self._held.find(self._close)
            if close >= 0:
                self._emit(pieces, "content", self._held[:close])
                self._held = self._held[close + len(self._close) :]
                self._tail_close = False
                return True
            self._release(pieces, "content", 0 if final else _prefix_tail(self._held, self._close))
            return False
        self._release(pieces, "content", 0)
        return False

    def _find_call(self, text: str, before: int) -> int:
        """Where a tool call begins inside thinking, before position `before` (-1: anywhere), or -1."""
        at = text.find(self._tool) if self._tool else -1
        while self._tool and at >= 0 and (before < 0 or at < before):
            after = text[at + len(self._tool) :].lstrip()
            tag = after.startswith(self._close) or self._close.startswith(after)
            if after[:1] in ("{", "<") and not tag:
                return at
            at = text.find(self._tool, at + 1)
        return -1

    def _uncertain(self, text: str) -> int:
        """How many characters at the end may belong to a tag, or to white space before one."""
        keep = _prefix_tail(text, self._close)
        if self._tool:
            keep = max(keep, _prefix_tail(text, self._tool))
            at = text.rfind(self._tool)
            if at >= 0 and self._close.startswith(text[at + len(self._tool) :].lstrip()):
                keep = max(keep, len(text) - at)
        before = text[: len(text) - keep]
        return keep + len(before) - len(before.rstrip())

    def _enter(self, state: _State, held: str) -> None:
        self._state, self._held = state, held

    def _release(self, pieces: list[Piece], channel: Channel, keep: int) -> None:
        cut = len(self._held) - keep
        self._emit(pieces, channel, self._held[:cut])
        self._held = self._held[cut:]

    @staticmethod
    def _emit(pieces: list[Piece], channel: Channel, text: str) -> None:
        if text:
            pieces.append(Piece(channel, text))


def _prefix_tail(text: str, tag: str) -> int:
    """Length of the longest proper prefix of `tag` at the end of `text`."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def split_reasoning(chunks: Iterable[str], splitter: ThinkSplitter | None = None) -> tuple[str, str]:
    """(reasoning, content) of a whole text given in chunks."""
    splitter = splitter or ThinkSplitter()
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.finish()
    return (
        "".join(piece.text for piece in pieces if piece.channel == "reasoning"),
        "".join(piece.text for piece in pieces if piece.channel == "content"),
    )
