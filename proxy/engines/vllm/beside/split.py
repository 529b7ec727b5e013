"""Which part of vLLM's text is reasoning, and which is the answer.

Three ways, the first that applies: the server parses thinking itself (a reasoning parser); the tags are
special tokens, which vLLM leaves out of its text, so that only token ids tell where they stood; the tags
stand in the text. What opens and ends thinking is told by `controller.thinking` in each of them. Knows
chunks, tags and ids; nothing of events.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Sequence

from desist.controller import BoundaryDetector, ModelProfile
from desist.controller.lexicon import lexicon
from desist.controller.thinking import Span, SpanKind, ThinkState, Where, prefix_tail
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.reasoning import Channel, Piece, ThinkSplitter

__all__ = ["IdSplitter", "TagEater", "ThoughtSplit"]

_CHANNELS: dict[SpanKind, Channel] = {SpanKind.REASONING: "reasoning", SpanKind.CONTENT: "content"}


class ThoughtSplit:
    """Splits one generation. `facts` None: the ids of this model mean nothing here.

    `raw`: everything is answer, tags included. `opened`: whether the prompt opens thinking, where its ids
    do not tell. `shows_special`: vLLM was asked to keep special tokens in the text. `parses`: the server is
    known to parse thinking. `may_hide`: the client asked for no reasoning: a server that parses thinking then
    sends neither reasoning nor ids.
    """

    def __init__(
        self,
        profile: ModelProfile,
        facts: ModelFacts | None,
        *,
        raw: bool = False,
        opened: bool = False,
        shows_special: bool = False,
        parses: bool = False,
        may_hide: bool = False,
    ) -> None:
        self._profile, self._facts = profile, facts
        self._may_hide, self._by_server = may_hide, parses and not raw
        self._raw, self._opened, self._shows_special = raw, opened, shows_special
        self._ids: IdSplitter | None = None  # counts; splits too where the text lacks the tags
        self._text: ThinkSplitter | None = None
        self._eater: TagEater | None = None
        self._began = self._answered = self._saw_ids = self._splits_by_ids = False

    @property
    def n_reasoning(self) -> int | None:
        """Ids of reasoning so far, tags left out; None where ids do not tell."""
        return None if self._ids is None else self._ids.n_reasoning

    def feed(self, chunk: Chunk, *, stopped: bool) -> list[Piece]:
        """The pieces that `chunk` releases. `stopped`: thinking was stopped: tags of the model in the answer
        are waste."""
        if not self._began:
            self._begin(chunk.prompt_ids)
        pieces: list[Piece] = []
        self._saw_ids = self._saw_ids or bool(chunk.token_ids)
        hides = self._may_hide and bool(chunk.content) and not self._saw_ids
        if (chunk.reasoning or hides) and not self._by_server:
            self._by_server = True
            if self._text is not None:
                pieces, self._text = self._text.finish(), None
        if chunk.reasoning:
            pieces.append(Piece("reasoning", chunk.reasoning))
        by_ids = self._splits_by_ids and not self._by_server
        shown = self._ids.feed(chunk.token_ids, chunk.content if by_ids else "") if self._ids else []
        if chunk.content and self._by_server and not (self._answered or self._raw or self._text):
            # The server takes the first close tag for the end; what follows it directly is still waste.
            self._text = ThinkSplitter.of(self._profile, closed=True)
        if by_ids:
            pieces += shown
        elif chunk.content:
            plain = [Piece("content", chunk.content)]
            pieces += plain if self._text is None else self._text.feed(chunk.content)
        return self._eaten(pieces, stopped)

    def finish(self, *, stopped: bool) -> list[Piece]:
        """What was held back, at the end."""
        pieces = self._text.finish() if self._text is not None else []
        if self._splits_by_ids and not self._by_server and self._ids is not None:
            pieces += self._ids.finish()
        pieces = self._eaten(pieces, stopped)
        rest = self._eater.finish() if self._eater is not None else ""
        return [*pieces, Piece("content", rest)] if rest else pieces

    def _begin(self, prompt_ids: Sequence[int]) -> None:
        self._began = True
        profile, facts = self._profile, self._facts
        thinking, closed, hidden = self._opened, False, False
        if facts is not None and prompt_ids:
            before = BoundaryDetector.from_prompt(profile, facts.vocabulary, prompt_ids)
            thinking, closed = before.thinking, before.closed and not before.thinking
        if facts is not None:
            tags = {facts.vocabulary.special_id(tag) for tag in (profile.think_open, profile.think_close)}
            if None not in tags:
                self._ids = IdSplitter(facts, profile, thinking=thinking, closed=closed)
                hidden = facts.hidden_ids.issuperset(tags) and not self._shows_special
        self._splits_by_ids = hidden and not self._raw
        if not (hidden or self._raw or self._by_server):
            self._text = ThinkSplitter.of(profile, opened=thinking, closed=closed)

    def _eaten(self, pieces: list[Piece], stopped: bool) -> list[Piece]:
        """The pieces of a stopped answer without the tags that are tokens of their own."""
        if not self._answered and any(piece.channel == "content" for piece in pieces):
            self._answered = True
            if stopped and self._ids is not None and not self._splits_by_ids and not self._raw:
                self._eater = TagEater(self._profile, self._ids.tags)
        if self._eater is None:
            return pieces
        left = []
        for piece in pieces:
            text = self._eater.feed(piece.text) if piece.channel == "content" else piece.text
            if text:
                left.append(Piece(piece.channel, text))
        return left


class IdSplitter:
    """Splits text from which the tags are missing, by counting the characters of the ids of each part.

    vLLM's text may come later than its ids (it holds back what may become a stop string), never earlier.
    `thinking`, `closed`: what the prompt has done. `tags`: of each tag that stands in the answer, in order,
    whether it is a token of its own; else it is text that the model quotes.
    """

    def __init__(
        self, facts: ModelFacts, profile: ModelProfile, *, thinking: bool, closed: bool = False
    ) -> None:
        self._facts = facts
        self._words = words = lexicon(profile, facts.vocabulary)
        where = Where.OPENED if thinking else Where.CLOSED if closed else Where.BEFORE
        self._scan = ThinkState(where, closed=closed)
        self._tokens: deque[tuple[int, bytes]] = deque()  # not certain yet: characters read, bytes shown
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: deque[tuple[SpanKind, int]] = deque()  # characters of the text still to come
        self._kind = SpanKind.REASONING if thinking else SpanKind.CONTENT  # of the last certain part
        self._late = ""  # text whose kind is not certain yet
        tokens = [words.spelled(tag.token_id, tag.data) for tag in (words.opening, words.closing)]
        texts = [tag.data.decode("latin-1") for tag in (words.opening, words.closing)]
        self._own = frozenset(tokens)
        self._any = re.compile("|".join(map(re.escape, tokens + texts)))
        self._tail, self._texts = "", texts
        self.tags: deque[bool] = deque()
        self.n_reasoning = 0

    def feed(self, token_ids: Sequence[int], text: str) -> list[Piece]:
        """Take the ids and the text of one chunk; the pieces of the text that are certain."""
        for token in token_ids:
            self._count(token)
        self._late += text
        return self._released()

    def finish(self) -> list[Piece]:
        """The pieces that were held back, at the end."""
        self._scan, spans = self._words.rules.advance(self._scan, "", final=True)
        self._take(spans)
        pieces = self._released()
        if self._late.strip():  # of ids that were never told
            pieces.append(Piece("reasoning" if self._scan.thinking else "content", self._late))
        self._late = ""
        return pieces

    def _count(self, token: int) -> None:
        data = self._facts.vocabulary.token_bytes(token)
        text, before = self._words.spelled(token, data), self._scan
        own = text in self._own
        if text:
            self._tokens.append((len(text), b"" if token in self._facts.hidden_ids else data))
        self._scan, spans = self._words.rules.advance(before, text)
        after = self._scan
        if before.thinking and after.thinking and after.where is not Where.ASKING and not own:
            self.n_reasoning += token not in self._facts.end_ids
        if own:  # half a character before a tag is a character
            self._add(self._kind, len(self._decode.decode(b"", True)))
        self._take(spans)

    def _take(self, spans: Iterable[Span]) -> None:
        """The next characters that were read are certain: how many of the text they are."""
        for span in spans:
            shown, left = b"", len(span.text)
            while left and self._tokens:
                length, data = self._tokens.popleft()
                if length > left:
                    self._tokens.appendleft((length - left, data[left:]))
                    data = data[:left]
                shown += data
                left -= min(left, length)
            self._add(span.kind, len(self._decode.decode(shown)))
            if span.kind is SpanKind.CONTENT:
                self._note(span.text)

    def _add(self, kind: SpanKind, n: int) -> None:
        self._kind = kind
        if self._parts and self._parts[-1][0] is kind:
            n += self._parts.pop()[1]
        self._parts.append((kind, n))

    def _note(self, text: str) -> None:
        """Find the tags in the answer."""
        text, end = self._tail + text, 0
        for found in self._any.finditer(text):
            self.tags.append(found[0] in self._own)
            end = found.end()
        keep = prefix_tail(text[end:], *self._texts)
        self._tail = text[len(text) - keep :]

    def _released(self) -> list[Piece]:
        pieces = []
        while self._late and self._parts:
            kind, expected = self._parts[0]
            last = len(self._parts) == 1
            if last and not self._tokens and kind is not SpanKind.WASTE:
                part, self._late = self._late, ""  # what the text has more than its ids belongs to it
            else:
                part, self._late = self._late[:expected], self._late[expected:]
            self._parts[0] = (kind, max(0, expected - len(part)))
            channel = _CHANNELS.get(kind)
            if part and channel is not None:
                pieces.append(Piece(channel, part))
            if last and not part:
                break
            if not last and not self._parts[0][1]:
                self._parts.popleft()
        return pieces


class TagEater:
    """Takes tags that are tokens of their own out of a text that comes in pieces.

    `own`: of each tag in the text, in order, whether it is one; a tag that is text stays. What may be the
    beginning of a tag is held back.
    """

    def __init__(self, profile: ModelProfile, own: deque[bool]) -> None:
        self._tags = (profile.think_open, profile.think_close)
        self._any = re.compile("|".join(map(re.escape, self._tags)))
        self._own, self._held = own, ""

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        text, shown, at = self._held + text, "", 0
        for found in self._any.finditer(text):
            own = self._own.popleft() if self._own else False
            shown += text[at : found.start()] + ("" if own else found[0])
            at = found.end()
        end = len(text) - prefix_tail(text[at:], *self._tags)
        self._held = text[end:]
        return shown + text[at:end]

    def finish(self) -> str:
        """What was held back."""
        text, self._held = self._held, ""
        return text
