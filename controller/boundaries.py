"""Boundaries in a stream of token ids, and whether the model is thinking at all.

Knows tags, cues and paragraphs of one model profile, on exact bytes: a character, a cue or a tag may be
spread over tokens or share one. Knows no scores. State can be rebuilt from the token history.
In a prompt only what follows the last assistant header counts, so a tag quoted by the user is nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from desist.controller.core import Boundary
from desist.controller.cues import CueState
from desist.controller.holdoff import HoldOff
from desist.controller.lexicon import lexicon
from desist.controller.profile import ModelProfile
from desist.controller.tags import after_header, ends_with
from desist.controller.vocabulary import Vocabulary
from desist.data.schema import BoundaryKind

__all__ = ["BoundaryDetector"]

_CHECKPOINT = 64  # tokens between two kept states


@dataclass(slots=True)
class _State:
    """Everything that changes with a token. All fields are values, save `zones`, which is copied."""

    thinking: bool
    closed: bool = False
    reopened: bool = False
    tool_call: bool = False
    tokens: int = 0
    position: int = 0
    boundaries: int = 0
    pending: bytes = b""  # first bytes of a character
    recent: tuple[bytes, ...] = ()  # last tokens, for tags spelled over several
    cue: CueState = field(default_factory=CueState)
    newlines: int = 0  # since the last character that is not white space
    content: bool = False  # text since the last paragraph end
    periods: int = 0  # every_n boundaries passed
    zones: HoldOff = field(default_factory=HoldOff)

    def copy(self) -> _State:
        twin = _State.__new__(_State)
        for name in _FIELDS:
            setattr(twin, name, getattr(self, name))
        twin.zones = self.zones.copy()
        return twin


_FIELDS = tuple(each.name for each in fields(_State))  # `copy.copy` would look for them each time


class BoundaryDetector:
    """Reads one generation token by token and tells its boundaries.

    `BoundaryDetector(profile, vocabulary)` starts inside a thinking block that was just opened; use
    `from_prompt` for a rendered prompt. At most one boundary a token: cue before paragraph before
    every_n before token. No boundary lies inside a character or a half-written close tag.
    """

    def __init__(self, profile: ModelProfile, vocabulary: Vocabulary, *, thinking: bool = True) -> None:
        self.profile = profile
        self._vocabulary = vocabulary
        self._words = words = lexicon(profile, vocabulary)
        self._open, self._close, self._tool = words.opening, words.closing, words.tool
        self._cues, self._memory = words.cues, words.memory
        self._state = _State(thinking)
        self._unread: list[str] = []  # inert text that the state has not taken in yet
        self._history: list[int] = []
        self._checkpoints: list[_State] = [self._state.copy()]

    @classmethod
    def from_prompt(
        cls, profile: ModelProfile, vocabulary: Vocabulary, prompt_ids: Sequence[int]
    ) -> BoundaryDetector:
        """The state after a rendered prompt: thinking prefilled open, closed, empty, or not begun.

        What a prefilled thinking block already says is read (a cue may be completed by the first
        token), but its tokens are not counted. Where the profile has no assistant header, or the prompt
        does not show it, the tag at the very end of the prompt decides.
        """
        detector = cls(profile, vocabulary, thinking=False)
        detector._read_prompt(prompt_ids)
        state = detector._state
        state.tokens = state.position = state.boundaries = state.periods = 0
        state.reopened = state.tool_call = False
        detector._unread.clear()
        detector._history.clear()
        detector._checkpoints = [state.copy()]
        return detector

    @property
    def thinking(self) -> bool:
        """Whether the next token is read as reasoning."""
        return self._state.thinking

    @property
    def closed(self) -> bool:
        """Whether a thinking block has been closed (in the prompt or since)."""
        return self._state.closed

    @property
    def reopened(self) -> bool:
        """Whether thinking was opened again after it had been closed."""
        return self._state.reopened

    @property
    def tool_call(self) -> bool:
        """Whether a tool call ended the thinking."""
        return self._state.tool_call

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
        return self._state.zones.held or self.mid_character or self._close.begun(self._state.recent)

    @property
    def mid_character(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._state.pending)

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
        text = self._words.inert(token_id) if state.thinking and not state.pending else None
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
        if not state.thinking or state.pending:
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

    def _read(self, token_id: int | None, data: bytes) -> Boundary | None:
        state = self._state
        state.tokens += 1
        if not state.thinking:
            opened = self._open.find(state.recent, token_id, data)
            if opened is None:
                self._remember(data)
            else:
                self._begin(data[opened[1] :])
            return None
        for tag in (self._close, self._tool):
            place = tag.find(state.recent, token_id, data) if tag else None
            if place is not None:
                self._end(place, tool=tag is self._tool)
                return None
        self._remember(data)
        state.position += 1
        return self._boundary(data)

    def _begin(self, rest: bytes) -> None:
        """Thinking opens; `rest` shares the tag's last token and is read but not counted."""
        state = self._state
        state.thinking, state.reopened = True, state.reopened or state.closed
        state.recent, state.pending, state.cue = (), b"", CueState()
        state.newlines, state.content, state.zones = 0, False, HoldOff()
        self._remember(rest)
        self._text(rest)

    def _end(self, place: tuple[int, int], *, tool: bool) -> None:
        """Thinking ends; tokens that hold nothing but the tag's characters are not reasoning."""
        state = self._state
        start = place[0]
        if start > 0:
            state.position += 1
        for earlier in reversed(state.recent):
            if start >= 0:
                break
            start += len(earlier)
            state.position -= start <= 0 and state.position > 0
        state.thinking, state.closed = False, True
        state.tool_call = state.tool_call or tool
        state.recent, state.pending = (), b""
        state.zones = HoldOff()

    def _remember(self, data: bytes) -> None:
        if self._memory:
            self._state.recent = (*self._state.recent, data)[-self._memory :]

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
        if state.pending or self._close.begun(state.recent):
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

    def _read_prompt(self, prompt_ids: Sequence[int]) -> None:
        tail = after_header(self.profile.assistant_header, self._vocabulary, prompt_ids)
        if tail is not None:
            for token_id, data in tail:
                self._read(token_id, data)
        elif ends_with(self._open, self._vocabulary, prompt_ids):
            self._begin(b"")
        elif ends_with(self._close, self._vocabulary, prompt_ids):
            self._state.closed = True
