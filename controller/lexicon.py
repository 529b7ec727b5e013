"""What one profile means in one vocabulary: tags, cues, and which tokens can change nothing but counts.

Most tokens of a trace are plain words: they hold no tag, end no cue, open or close no zone, end no line. For
those a detector need only remember the text (`inert`), and look at it when it matters. Shared by all
detectors of a profile and a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, cast

from desist.controller.cues import CueMatcher, plain
from desist.controller.holdoff import SPECIAL
from desist.controller.profile import ModelProfile
from desist.controller.tags import Tag
from desist.controller.thinking import Rules
from desist.controller.vocabulary import Vocabulary

__all__ = ["Lexicon", "lexicon"]

_MARK = "\u0100"  # stands before an added token in what the rules read, which is bytes else


class Lexicon:
    """Use `lexicon`, which keeps one for each profile and vocabulary."""

    def __init__(self, profile: ModelProfile, vocabulary: Vocabulary) -> None:
        self.opening = Tag(profile.think_open, vocabulary)
        self.closing = Tag(profile.think_close, vocabulary)
        self.tool = Tag(profile.tool_call_open, vocabulary) if profile.tool_call_open else None
        self.cues = CueMatcher(profile.cues if "cue" in profile.kinds else ())
        self._vocabulary = vocabulary
        self._tags: dict[int, str] = {}  # added tokens that the rules read, as they are told to them
        self.memory = 0  # tokens that may spell a tag
        self.rules: Rules = profile.rules(self._spell, _MARK)
        self._ends = tuple(_flat(cue) for cue in profile.cues) if "cue" in profile.kinds else ()
        # Kinds that look at every token, and tags that tokens spell, leave none that is inert.
        self._any = not self.memory and not {"token", "every_n"} & set(profile.kinds)
        self._inert: dict[int, str | None] = {}
        #: The detector's state after what a template writes at the beginning of the model's turn.
        self.prompts: dict[Any, Any] = {}

    def spelled(self, token_id: int | None, data: bytes) -> str:
        """A token as the rules read it: a character for each byte, an added token with a mark before it."""
        tag = None if token_id is None else self._tags.get(token_id)
        return data.decode("latin-1") if tag is None else tag

    def _spell(self, tag: str) -> str:
        text, token_id = tag.encode().decode("latin-1"), self._vocabulary.special_id(tag)
        if token_id is None:
            self.memory = max(self.memory, len(text))
            return text
        self._tags[token_id] = _MARK + text
        return self._tags[token_id]

    def says_nothing(self, token_id: int) -> bool:
        """Whether a token can be no boundary and open or close nothing, wherever it stands."""
        return self.inert(token_id) is not None

    def ends_line(self, token_id: int) -> bool:
        """Whether a token is one line end among blanks, which is no boundary unless blanks alone stand
        between it and another line end."""
        if not self._any or self._vocabulary.is_special(token_id):
            return False
        try:
            text = self._vocabulary.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return False
        single = text.count("\n") == 1 and text.isspace()
        return single and not any(self._may_end(cue, _flat(text)) for cue in self._ends)

    def inert(self, token_id: int) -> str | None:
        """The text of a token that can be no boundary and change no zone, whatever stands before it."""
        try:
            return self._inert[token_id]
        except KeyError:
            text = self._inert[token_id] = self._inert_text(token_id) if self._any else None
            return text

    def _inert_text(self, token_id: int) -> str | None:
        if self._vocabulary.is_special(token_id):
            return None
        try:
            text = self._vocabulary.token_bytes(token_id).decode()
        except UnicodeDecodeError:  # a part of a character
            return None
        if not text or SPECIAL.search(text):
            return None
        flat = _flat(text)
        return None if any(self._may_end(cue, flat) for cue in self._ends) else text

    @staticmethod
    def _may_end(cue: str, text: str) -> bool:
        """Whether the cue may end in this text, with any text before it."""
        return any(
            cue.endswith(text[:end]) if end < len(cue) else text[:end].endswith(cue)
            for end in range(1, len(text) + 1)
        )


def lexicon(profile: ModelProfile, vocabulary: Vocabulary) -> Lexicon:
    """The lexicon of a profile in a vocabulary (which is told by its identity)."""
    return _kept(profile, cast(Hashable, vocabulary))


@lru_cache(maxsize=32)
def _kept(profile: ModelProfile, vocabulary: Any) -> Lexicon:
    return Lexicon(profile, vocabulary)


def _flat(text: str) -> str:
    """As cues are compared: small letters, one apostrophe, one kind of white space."""
    return re.sub(r"\s", " ", plain(text).replace("\u2019", "'"))
