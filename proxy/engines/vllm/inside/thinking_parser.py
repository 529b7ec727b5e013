"""A reasoning parser for vLLM that goes by a model profile's own tags: `--reasoning-parser desist-PROFILE`.

Without a reasoning parser vLLM's grammars bind from the first token on, so that nothing is thought; with one
they bind after the close tag, a forced one too. The grammar goes by token ids, as the controller does, the
text by the same rules as the proxy's. Knows vLLM's parser interface; no requests and no events.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser

from desist.controller import BoundaryDetector, ModelProfile, TokenizerVocabulary
from desist.controller.profiles import PROFILES
from desist.controller.tags import after_header
from desist.proxy.reasoning import Piece, ThinkSplitter

__all__ = ["ThinkingParser"]


class ThinkingParser(ReasoningParser):  # type: ignore[misc]
    """The parser of one profile. vLLM makes one for each request in its frontend, and one in its engine."""

    profile: ClassVar[ModelProfile]
    #: vLLM then asks what was split, not where an id stood, and fetches what was held back at the end.
    engine_based_streaming = True

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._vocabulary = _vocabulary(tokenizer)
        tags = (self.profile.think_open, self.profile.think_close)
        opening, closing = map(self._vocabulary.special_id, tags)
        if opening is None or closing is None:
            raise ValueError(
                f"this model has no tokens {tags[0]!r} and {tags[1]!r}, which profile '{self.profile.name}' "
                "names. Choose the profile of this model."
            )
        self._closing = closing
        self._hidden = not {opening, closing}.isdisjoint(tokenizer.all_special_ids)
        self._thinking, self._closed = True, False  # at the end of the prompt
        self._splitter: ThinkSplitter | None = None  # of a stream
        self._answered = False

    @property
    def reasoning_start_str(self) -> str:
        return self.profile.think_open

    @property
    def reasoning_end_str(self) -> str:
        return self.profile.think_close

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether a prompt leaves no thinking to come, so that a grammar binds at once.

        So it is where thinking was closed, and where a text is continued that holds no turn of the model's.
        """
        profile, vocabulary = self.profile, self._vocabulary
        before = BoundaryDetector.from_prompt(profile, vocabulary, input_ids)
        self._thinking, self._closed = before.thinking, before.closed and not before.thinking
        if self._thinking or self._closed or profile.assistant_header is None:
            return self._closed
        return after_header(profile.assistant_header, vocabulary, input_ids) is None

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Whether `delta_ids`, the last of `input_ids`, hold a close tag: after it a grammar binds."""
        return self._closing in delta_ids

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Whether the stream has come to the answer's first text."""
        return self._answered

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The ids after the first close tag; all of them where it stood before them."""
        if self._closing in input_ids:
            return input_ids[input_ids.index(self._closing) + 1 :]
        return input_ids if self._answered else []

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """The tokens of reasoning, tags left out, as the controller counts them."""
        if self._closed:
            return 0
        detector = BoundaryDetector(self.profile, self._vocabulary, thinking=self._thinking)
        detector.skip(token_ids)
        return detector.position

    def adjust_request(self, request: Any) -> Any:
        """Have tags that are special tokens written into the text, from which they are then taken."""
        if self._hidden:
            request.skip_special_tokens = False
        return request

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """(reasoning, content) of a whole text."""
        splitter = self._begun()
        said = _joined([*splitter.feed(model_output), *splitter.finish()])
        return said["reasoning"] or None, said["content"] or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> Any:
        """The message for the next piece of a stream; None where it holds no text for anyone."""
        if self._splitter is None:
            self._splitter = self._begun()
        return self._message(self._splitter.feed(delta_text))

    def finish_streaming(self) -> Any:
        """What was held back, when the stream has ended or the answer has begun."""
        return None if self._splitter is None else self._message(self._splitter.finish())

    def _begun(self) -> ThinkSplitter:
        return ThinkSplitter.of(self.profile, opened=self._thinking, closed=self._closed)

    def _message(self, pieces: list[Piece]) -> Any:
        said = _joined(pieces)
        self._answered = self._answered or bool(said["content"])
        if not pieces:
            return None
        return DeltaMessage(reasoning=said["reasoning"] or None, content=said["content"] or None)


def __getattr__(name: str) -> type[ThinkingParser]:
    """vLLM asks for the class of a profile by its name, in whatever process it needs it."""
    if name not in PROFILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type("ThinkingParser", (ThinkingParser,), {"profile": PROFILES[name]})


def _vocabulary(tokenizer: Any) -> TokenizerVocabulary:
    return _kept(cast(Hashable, tokenizer))


@lru_cache(maxsize=4)
def _kept(tokenizer: Any) -> TokenizerVocabulary:
    return TokenizerVocabulary(tokenizer)


def _joined(pieces: Iterable[Piece]) -> dict[str, str]:
    said = {"reasoning": "", "content": ""}
    for channel, text in pieces:
        said[channel] += text
    return said
