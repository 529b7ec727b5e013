"""Boundaries in a stream of token ids, and whether the model is thinking at all.

Knows cues and paragraphs of one model profile, on exact bytes: a character, a cue or a tag may be spread over
tokens or share one. What opens and ends thinking is told by the profile's rules (`thinking`), as for the
parser of texts. Knows no scores. State can be rebuilt from the token history. In a prompt only what follows
the last assistant header counts, so a tag quoted by the user is nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from desist.controller.core import Boundary
from desist.controller.cues import CueState
from desist.controller.detector_state import DetectorState, after_opening, ending
from desist.controller.holdoff import HoldOff
from desist.controller.lexicon import lexicon
from desist.controller.profile import ModelProfile
from desist.controller.tags import after_header, ends_with
from desist.controller.thinking import BLANK, Span, ThinkState, Where
from desist.controller.vocabulary import Vocabulary
from desist.data.schema import BoundaryKind

__all__ = ["BoundaryDetector"]

_CHECKPOINT = 64  # tokens between two kept states
_MOST_PROMPTS = 256  # beginnings of the model's turn whose state is remembered: templates write few


class BoundaryDetector:
    """Reads one generation token by token and tells its boundaries.

    `BoundaryDetector(profile, vocabulary)` starts inside a thinking block that was just opened; use
    `from_prompt` for a rendered prompt. At most one boundary a token: cue before paragraph before
    every_n before token. No boundary lies inside a character or a half-written close tag.
    """

    def __init__(
        self,
        profile: ModelProfile,
        vocabulary: Vocabulary,
        *,
        thinking: bool = True,
        state: DetectorState | None = None,
    ) -> None:
        self.profile = profile
        self._vocabulary = vocabulary
        self._words = words = lexicon(profile, vocabulary)
        self._open, self._close, self._tool = words.opening, words.closing, words.tool
        self._rules, self._cues, self._memory = words.rules, words.cues, words.memory
        self._state = state or DetectorState(ThinkState(Where.OPENED if thinking else Where.BEFORE))
        self._unread: list[str] = []  # inert text that the state has not taken in yet
        self._history: list[int] = []
        self._checkpoints: list[DetectorState] = [self._state.copy()]

    @classmethod
    def from_prompt(
        cls, profile: ModelProfile, vocabulary: Vocabulary, prompt_ids: Sequence[int]
    ) -> BoundaryDetector:
        """The state after a rendered prompt: thinking prefilled open, closed, empty, or not begun.

        What a prefilled thinking block already says is read (a cue may be completed by the first
        token), but its tokens are not counted. Where the profile has no assistant header, or the prompt
        does not show it, the tag at the very end of the prompt decides.
        """
        tail = after_header(profile.assistant_header, vocabulary, prompt_ids)
        known = lexicon(profile, vocabulary).prompts
        state = None if tail is None else known.get(tail)
        if state is None:
            reader = cls(profile, vocabulary, thinking=False)
            reader._read_prompt(tail, prompt_ids)
            state = reader._state
            state.tokens = state.position = state.boundaries = state.periods = 0
            state.reopened, state.scan = False, state.scan._replace(called=False)
            if tail is not None and len(known) < _MOST_PROMPTS:
                known[tail] = state
        return cls(profile, vocabulary, state=state.copy())

    @property
    def thinking(self) -> bool:
        """Whether the next token is read as reasoning."""
        return self._state.scan.thinking

    @property
    def closed(self) -> bool:
        """Whether a thinking block has been closed (in the prompt or since)."""
        return self._state.scan.closed

    @property
    def reopened(self) -> bool:
        """Whether thinking was opened again after it had been closed."""
        return self._state.reopened

    @property
    def tool_call(self) -> bool:
        """Whether a tool call ended the thinking."""
        return self._state.scan.called

    @property
    def position(self) -> int:
        """Reasoning tokens so far; tags are not counted."""
        return self._state.position

    @property
    def tokens(self) -> int:
        """All tokens pushed so far."""
        return self._state.tokens

    @property
    def held(self) -> bool:
        """Whether thinking must not be cut here: hold-off zone, half a tag, half a character."""
        self._settle()
        return self._state.zones.held or self.mid_character or self._mid_tag

    @property
    def mid_character(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._state.pending)

    @property
    def whole(self) -> bool:
        """Whether a hard budget may cut here: not inside a character, nor where a tool call may begin."""
        return not self._state.pending and self._state.scan.where is not Where.ASKING

    @property
    def _mid_tag(self) -> bool:
        return self._state.scan.thinking and len(self._state.scan.held) > 1

    def zone_after(self, token_ids: Iterable[int]) -> bool:
        """Whether a hold-off zone would be open after these tokens, which are not read. Tags are tokens."""
        self._settle()
        zones, pending = self._state.zones.copy(), self._state.pending
        thinking = self._state.thinking
        for token_id in token_ids:
            if token_id in (self._close.token_id, self._tool and self._tool.token_id):
                thinking = False
            data = pending + self._vocabulary.token_bytes(token_id)
            text, used = codecs.utf_8_decode(data, "replace", False)
            pending = data[used:]
            zones.feed(text)
        return thinking and zones.held

    def push(self, token_id: int) -> Boundary | None:
        """Read one generated token; the boundary it completes, if any."""
        state = self._state
        inert = state.scan.thinking and not state.scan.held and not state.pending
        text = self._words.inert(token_id) if inert else None
        if text is None:
            self._settle()
            boundary = self._read(token_id, self._vocabulary.token_bytes(token_id))
        else:
            self._unread.append(text)
            state.tokens += 1
            state.position += 1
            boundary = None
        self._history.append(token_id)
        if len(self._history) % _CHECKPOINT == 0:
            self._settle()
            self._checkpoints.append(self._state.copy())
        return boundary

    def skip(self, token_ids: Sequence[int]) -> None:
        """Read tokens of which none completes a boundary, as `push` would each of them, at once."""
        start = 0
        while start < len(token_ids):
            inert = self._skip_inert(token_ids, start)
            start += inert
            if start < len(token_ids):
                self.push(token_ids[start])
                start += 1

    def _skip_inert(self, token_ids: Sequence[int], start: int) -> int:
        """Take the inert tokens from `start` on to be read later; how many these are."""
        state, history = self._state, self._history
        if not state.scan.thinking or state.scan.held or state.pending:
            return 0
        end = min(len(token_ids), start + _CHECKPOINT - 1 - len(history) % _CHECKPOINT)  # `push` keeps states
        inert, unread, at = self._words.inert, self._unread, start
        while at < end:
            text = inert(token_ids[at])
            if text is None:
                break
            unread.append(text)
            at += 1
        history += token_ids[start:at]
        state.tokens += at - start
        state.position += at - start
        return at - start

    def replay(self, token_ids: Iterable[int]) -> tuple[Boundary, ...]:
        """Start again after the prompt and read these tokens: the state from a token history."""
        self.rewind(0)
        return tuple(found for token_id in token_ids if (found := self.push(token_id)) is not None)

    def rewind(self, tokens: int) -> None:
        """Forget all but the first `tokens` pushed tokens (rejected drafts)."""
        self._unread.clear()
        kept = self._history[: max(0, tokens)]
        whole = len(kept) // _CHECKPOINT
        del self._checkpoints[whole + 1 :]
        self._state = self._checkpoints[whole].copy()
        self._history = kept[: whole * _CHECKPOINT]
        for token_id in kept[whole * _CHECKPOINT :]:
            self.push(token_id)

    def _settle(self) -> None:
        """Take in the inert text so far: pieces of any size give one state."""
        if not self._unread:
            return
        text = "".join(self._unread)
        self._unread.clear()
        state = self._state
        state.zones.feed(text)
        state.cue, _ = self._cues.feed(state.cue, text)
        if not text.isspace():
            state.newlines, state.content = 0, True
        if state.scan.where is Where.OPENED and text.strip(BLANK):
            state.scan = state.scan._replace(where=Where.THINKING)

    def _read(self, token_id: int | None, data: bytes) -> Boundary | None:
        state = self._state
        state.tokens += 1
        before, text = state.scan, self._words.spelled(token_id, data)
        state.scan, spans = self._rules.advance(before, text)
        ended = ending(spans) if before.thinking else None
        if ended is not None:
            self._end(ended - len(before.held))
        if not state.scan.thinking:
            return None
        if ended is not None or not before.thinking:
            self._begin(data, spans)
            return None
        if state.scan.where is Where.ASKING:
            self._ask(data, len(text), anew=before.where is not Where.ASKING or bool(spans))
            return None
        self._remember(len(text))
        state.position += 1
        return self._boundary(data)

    def _begin(self, data: bytes, spans: Sequence[Span] = ()) -> None:
        """Thinking opens; what shares the tag's last token is read but not counted."""
        state = self._state
        state.reopened = state.reopened or state.scan.closed
        state.recent, state.pending, state.cue = (), b"", CueState()
        state.newlines, state.content, state.zones = 0, False, HoldOff()
        rest = after_opening(spans) + len(state.scan.held) if spans else 0
        if rest:
            self._remember(rest, counted=False)
            self._text(data[-rest:])

    def _ask(self, data: bytes, length: int, *, anew: bool) -> None:
        """After the mark of a tool call it is not clear yet whether a call follows.

        The mark and the white space after it are read as text, for a mention goes on as such, but never
        counted as reasoning.
        """
        if anew:
            self._uncount(length - len(self._state.scan.held))
        self._remember(length, counted=False)
        self._text(data)

    def _end(self, start: int) -> None:
        """Thinking ends with a tag that starts at `start` in the last token (before it, if negative)."""
        state = self._state
        self._uncount(start)
        state.recent, state.pending = (), b""
        state.zones = HoldOff()

    def _uncount(self, start: int) -> None:
        """Tokens that hold nothing but the tag's characters are not reasoning."""
        state = self._state
        if start > 0:
            state.position += 1
        for length, counted in reversed(state.recent):
            if start >= 0:
                break
            start += length
            state.position -= counted and start <= 0 and state.position > 0

    def _remember(self, length: int, *, counted: bool = True) -> None:
        if self._memory:
            self._state.recent = (*self._state.recent, (length, counted))[-self._memory :]

    def _text(self, data: bytes) -> tuple[str | None, bool]:
        """Read bytes of reasoning: the cue they complete, and whether a paragraph ended."""
        state = self._state
        text, used = codecs.utf_8_decode(state.pending + data, "replace", False)
        state.pending = (state.pending + data)[used:]
        state.zones.feed(text)
        state.cue, cue = self._cues.feed(state.cue, text)
        ended = False
        for line, part in enumerate(text.split("\n")):
            if line:
                state.newlines += 1
                if state.newlines == 2 and state.content:
                    ended, state.content = True, False
            if part and not part.isspace():
                state.newlines, state.content = 0, True
        return cue, ended

    def _boundary(self, data: bytes) -> Boundary | None:
        state, profile = self._state, self.profile
        cue, ended = self._text(data)
        if state.pending or self._mid_tag:
            return None
        kind: BoundaryKind | None = None
        text = ""
        periods = state.position // profile.every_n if profile.every_n else 0
        if cue is not None:
            kind, text = "cue", cue
        elif ended and "paragraph" in profile.kinds:
            kind, text = "paragraph", "\n\n"
        elif "every_n" in profile.kinds and periods > state.periods:
            kind = "every_n"
        elif "token" in profile.kinds:
            kind = "token"
        state.periods = periods
        if kind is None:
            return None
        state.boundaries += 1
        return Boundary(state.boundaries - 1, state.position, kind, text)

    def _read_prompt(
        self, tail: Sequence[tuple[int | None, bytes]] | None, prompt_ids: Sequence[int]
    ) -> None:
        if tail is not None:
            for token_id, data in tail:
                self._read(token_id, data)
        elif ends_with(self._open, self._vocabulary, prompt_ids):
            self._state.scan = ThinkState(Where.OPENED)
            self._begin(b"")
        elif ends_with(self._close, self._vocabulary, prompt_ids):
            self._state.scan = ThinkState(Where.CLOSED, closed=True)
