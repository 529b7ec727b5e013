"""How many tokens an upstream call has generated, from the best that its server tells.

Token ids count exactly; running usage counts exactly at each chunk; otherwise characters give an estimate
until the final usage replaces it. A chunk is never taken for a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from desist.proxy.engines.upstream.wire import Chunk

__all__ = ["TokenCounts"]


class TokenCounts:
    """The counts of one upstream call."""

    def __init__(self, chars_per_token: float) -> None:
        self._chars_per_token = chars_per_token
        self._ids = 0
        self._text = 0  # characters
        self._reasoning_text = 0
        self._usage: Mapping[str, Any] = {}
        self._counted: int | None = None  # what its running usage says; None: it says nothing
        self._before = 0  # generated tokens before the chunk just read
        self._tags = 0  # those before the first reasoning: a tag that opens thinking
        self._at_reasoning = 0  # generated tokens when reasoning was last seen
        self._exact_reasoning = True  # every chunk with reasoning carried a count and no content
        #: All tokens up to the end of the chunk just read.
        self.generated = 0

    def read(self, chunk: Chunk) -> int:
        """Take a chunk; returns all tokens generated up to its end."""
        self._before = self.generated
        self._ids += len(chunk.token_ids)
        self._text += len(chunk.reasoning) + len(chunk.content)
        if chunk.delta_extra:
            self._text += _called(chunk.delta_extra)
        if chunk.usage is not None:
            self._usage = chunk.usage
            self._counted = _int(chunk.usage.get("completion_tokens"))
        self.generated = self._ids or self._counted or math.ceil(self._text / self._chars_per_token)
        return self.generated

    def reasoned(self, text: str, *, alone: bool) -> None:
        """Note reasoning text of the chunk just read; `alone`: the chunk held nothing else."""
        if not self._reasoning_text:
            self._tags = min(self._before, self.generated)
        self._reasoning_text += len(text)
        self._at_reasoning = self.generated
        if not (alone and (self._ids or self._counted is not None)):
            self._exact_reasoning = False

    @property
    def reasoning(self) -> int:
        """Reasoning tokens so far, without those of a tag before them."""
        return max(0, self._at_reasoning - self._tags)

    @property
    def tags(self) -> int:
        """Tokens before the first reasoning."""
        return self._tags

    @property
    def exact(self) -> bool:
        """Whether the tokens generated were counted by the server, or by their ids."""
        return bool(self._ids) or bool(self._counted) or not self._text

    @property
    def split_exact(self) -> bool:
        """Whether reasoning and answer are told apart by counts, and not by the share of their characters."""
        details = self._usage.get("completion_tokens_details")
        told = isinstance(details, dict) and bool(_int(details.get("reasoning_tokens")))
        return told or self._exact_reasoning or not self._reasoning_text

    @property
    def prompt(self) -> int | None:
        """Tokens of the prompt; None where the server does not tell (a zero tells nothing)."""
        return _int(self._usage.get("prompt_tokens")) or None

    @property
    def total(self) -> int:
        """All tokens of a finished call; the server's own count comes first."""
        return self._counted or self.generated

    def split(self) -> tuple[int, int]:
        """(reasoning, answer) tokens of a finished call; the server's own count of reasoning comes first."""
        total = self.total
        details = self._usage.get("completion_tokens_details")
        told = _int(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        if not told and self._reasoning_text and self._exact_reasoning:
            told = self.reasoning
        elif not told and self._reasoning_text:
            told = round(total * self._reasoning_text / max(1, self._text))
        reasoning = min(told or 0, total)
        return reasoning, total - reasoning


def _called(extra: Mapping[str, Any]) -> int:
    """Characters of tool calls in a delta: they are answer, and no reasoning."""
    calls = extra.get("tool_calls")
    if not isinstance(calls, list):
        return 0
    made = [call.get("function") for call in calls if isinstance(call, dict)]
    texts = [each.get(name) for each in made if isinstance(each, dict) for name in ("name", "arguments")]
    return sum(len(text) for text in texts if isinstance(text, str))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
