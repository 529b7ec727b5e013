"""Which part of vLLM's text is reasoning, and which is the answer.

Three ways, the first that applies: the server parses thinking itself (a reasoning parser); the tags are
special tokens, which vLLM leaves out of its text, so that only token ids tell where they stood; the tags
stand in the text. Knows chunks, tags and ids; nothing of events.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from desist.controller import BoundaryDetector, ModelProfile
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.reasoning import Channel, Piece, ThinkSplitter

__all__ = ["IdSplitter", "TagEater", "ThoughtSplit"]


class ThoughtSplit:
    """Splits one generation. `facts` None: the ids of this model mean nothing here.

    `raw`: everything is answer, tags included. `opened`: whether the prompt opens thinking, where its ids
    do not tell. `shows_special`: the client asked vLLM to keep special tokens in the text. `may_hide`: it
    asked for no reasoning: a server that parses thinking then sends neither reasoning nor ids.
    """

    def __init__(
        self,
        profile: ModelProfile,
        facts: ModelFacts | None,
        *,
        raw: bool = False,
        opened: bool = False,
        shows_special: bool = False,
        may_hide: bool = False,
    ) -> None:
        self._profile, self._facts = profile, facts
        self._may_hide = may_hide
        self._raw, self._opened, self._shows_special = raw, opened, shows_special
        self._eater = TagEater((profile.think_open, profile.think_close))
        self._ids: IdSplitter | None = None  # counts; splits too where the text lacks the tags
        self._text: ThinkSplitter | None = None
        self._began = self._by_server = self._saw_ids = False

    @property
    def n_reasoning(self) -> int | None:
        """Ids of reasoning so far, tags left out; None where ids do not tell."""
        return None if self._ids is None else self._ids.n_reasoning

    def feed(self, chunk: Chunk, *, stopped: bool) -> list[Piece]:
        """The pieces that `chunk` releases. `stopped`: thinking was stopped: tags in the answer are waste."""
        if not self._began:
            self._begin(chunk.prompt_ids)
        pieces: list[Piece] = []
        self._saw_ids = self._saw_ids or bool(chunk.token_ids)
        hides = self._may_hide and bool(chunk.content) and not self._saw_ids
        if chunk.reasoning or hides:
            if self._text is not None:
                pieces, self._text = self._text.finish(), None
            self._by_server = True
            pieces += [Piece("reasoning", chunk.reasoning)] if chunk.reasoning else []
        shown = self._ids.feed(chunk.token_ids, chunk.content) if self._ids is not None else []
        if self._text is not None and not self._raw:
            pieces += self._text.feed(chunk.content) if chunk.content else []
        elif self._by_server or self._raw or self._ids is None:
            pieces += [Piece("content", chunk.content)] if chunk.content else []
        else:
            pieces += shown
        return self._eaten(pieces) if stopped and not self._raw else pieces

    def finish(self, *, stopped: bool) -> list[Piece]:
        """What was held back, at the end."""
        pieces = self._text.finish() if self._text is not None else []
        pieces = self._eaten(pieces) if stopped else pieces
        rest = self._eater.finish()
        return [*pieces, Piece("content", rest)] if rest else pieces

    def _begin(self, prompt_ids: Sequence[int]) -> None:
        self._began = True
        profile, facts = self._profile, self._facts
        thinking, closed, hidden = self._opened, False, False
        if facts is not None and prompt_ids:
            before = BoundaryDetector.from_prompt(profile, facts.vocabulary, prompt_ids)
            thinking, closed = before.thinking, before.closed and not before.thinking
        if facts is not None:
            tags = [facts.vocabulary.special_id(tag) for tag in (profile.think_open, profile.think_close)]
            if tags[0] is not None and tags[1] is not None:
                self._ids = IdSplitter(facts, tags[0], tags[1], thinking=thinking)
                hidden = facts.hidden_ids.issuperset((tags[0], tags[1])) and not self._shows_special
        if not hidden and not self._raw:
            names = (profile.think_open, profile.think_close, profile.tool_call_open)
            self._text = ThinkSplitter(*names, opened=thinking, closed=closed)

    def _eaten(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces with tags taken out of the answer."""
        left = []
        for piece in pieces:
            text = self._eater.feed(piece.text) if piece.channel == "content" else piece.text
            if text:
                left.append(Piece(piece.channel, text))
        return left


class IdSplitter:
    """Splits text from which the tags are missing, by counting the characters of the ids before each tag.

    vLLM's text may come later than its ids (it holds back what may become a stop string), never earlier.
    White space at the beginning of the answer is dropped.
    """

    def __init__(self, facts: ModelFacts, opening: int, closing: int, *, thinking: bool) -> None:
        self._facts = facts
        self._switch: dict[int, Channel] = {opening: "reasoning", closing: "content"}
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        # [channel, characters still to come]; the text after what was counted belongs to the last one.
        self._parts: list[tuple[Channel, int]] = [("reasoning" if thinking else "content", 0)]
        self._answered = False
        self.n_reasoning = 0

    def feed(self, token_ids: Sequence[int], text: str) -> list[Piece]:
        """Take the ids and the text of one chunk; the pieces of the text."""
        for token in token_ids:
            self._count(token)
        pieces = []
        while text:
            channel, expected = self._parts[0]
            whole = len(self._parts) > 1 and expected < len(text)
            part, text = (text[:expected], text[expected:]) if whole else (text, "")
            self._parts[0] = (channel, max(0, expected - len(part)))
            if whole:
                self._parts.pop(0)
            if channel == "content" and not self._answered:
                part = part.lstrip()
                self._answered = bool(part)
            if part:
                pieces.append(Piece(channel, part))
        return pieces

    def _count(self, token: int) -> None:
        channel, expected = self._parts[-1]
        if token in self._switch:
            expected += len(self._decode.decode(b"", True))
            self._parts[-1] = (channel, expected)
            self._parts.append((self._switch[token], 0))
            return
        if channel == "reasoning":
            self.n_reasoning += 1
        if token not in self._facts.hidden_ids:
            expected += len(self._decode.decode(self._facts.vocabulary.token_bytes(token)))
            self._parts[-1] = (channel, expected)


class TagEater:
    """Takes tags out of a text that comes in pieces. What may be the beginning of a tag is held back."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tuple(tags)
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        text = self._held + text
        for tag in self._tags:
            text = text.replace(tag, "")
        begun = max(
            (n for tag in self._tags for n in range(1, len(tag)) if text.endswith(tag[:n])), default=0
        )
        keep = len(text) - begun
        text, self._held = text[:keep], text[keep:]
        return text

    def finish(self) -> str:
        """What was held back."""
        text, self._held = self._held, ""
        return text
