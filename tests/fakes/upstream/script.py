"""What the fake's model writes for a request: tokens, and what each of them looks like in a message.

A token has its text as the model wrote it and the delta that the server makes of it (a tag that a reasoning
parser swallows has none).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Dialect", "Script", "Token", "stopped_at", "with_limit"]

Dialect = Literal["reasoning", "reasoning_content", "both", "tags", "opened_tags"]


@dataclass(frozen=True)
class Token:
    """One token. `delta`: None for one that shows only in token ids."""

    text: str
    delta: Mapping[str, Any] | None


@dataclass(frozen=True)
class Script:
    """How the model writes. See the knobs of `FakeUpstream`, whose names these are."""

    dialect: Dialect
    tag_cut: int | None
    tag_tokens: bool
    answer_as_reasoning: bool

    def thinking(self, thoughts: Sequence[str]) -> list[Token]:
        """The thinking block, tags included."""
        if self.dialect in ("tags", "opened_tags"):
            opening = [] if self.dialect == "opened_tags" else self._cut("<think>", "\n")
            closing = [Token(text, {"content": text}) for text in self._cut("\n</think>", "\n\n")]
            return [
                *(Token(text, {"content": text}) for text in opening),
                *(Token(text, {"content": text}) for text in thoughts),
                *closing,
            ]
        names = ("reasoning", "reasoning_content") if self.dialect == "both" else (self.dialect,)
        made = [Token(text, dict.fromkeys(names, text)) for text in thoughts]
        if not self.tag_tokens:
            return made
        return [
            Token("<think>", None),
            Token("\n", None),
            *made,
            Token("</think>", None),
            Token("\n\n", None),
        ]

    def _cut(self, tag: str, after: str) -> list[str]:
        if self.tag_cut is None:
            return [tag + after]
        return [piece for piece in (tag[: self.tag_cut], tag[self.tag_cut :] + after) if piece]

    def answering(self, texts: Sequence[str], *, continues: bool) -> list[Token]:
        """The answer's text."""
        if continues and self.answer_as_reasoning:
            name = "reasoning_content" if self.dialect == "reasoning_content" else "reasoning"
            return [Token(text, {name: text}) for text in texts]
        return [Token(text, {"content": text}) for text in texts]

    @staticmethod
    def calling(tool: Mapping[str, str], *, parsed: bool) -> list[Token]:
        """A tool call, as deltas of the server's tool parser or as the model's own markup."""
        name, arguments = tool["name"], tool["arguments"]
        if not parsed:
            inner = f'{{"name": "{name}", "arguments": {arguments}}}'
            return [
                Token(text, {"content": text}) for text in ("<tool_call>", f"\n{inner}\n", "</tool_call>")
            ]
        half = len(arguments) // 2
        head = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas = [head, *({"function": {"arguments": each}} for each in (arguments[:half], arguments[half:]))]
        return [Token(f" t{n}", {"tool_calls": [{"index": 0, **each}]}) for n, each in enumerate(deltas)]


def with_limit(tokens: Sequence[Token], body: Mapping[str, Any]) -> tuple[list[Token], str]:
    """The tokens that max_tokens leaves, and the finish reason."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 10**9
    if len(tokens) > limit:
        return list(tokens[:limit]), "length"
    called = any(token.delta and "tool_calls" in token.delta for token in tokens)
    return list(tokens), "tool_calls" if called else "stop"


def stopped_at(tokens: Sequence[Token], stop: object) -> tuple[list[Token], str | None]:
    """The tokens before the first stop string, as vLLM ends there, and that string."""
    strings = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, (list, tuple)) else []
    text = "".join(token.text for token in tokens)
    found = min(((place, each) for each in strings if (place := text.find(each)) >= 0), default=None)
    if found is None:
        return list(tokens), None
    place, string = found
    kept, at = [], 0
    for token in tokens:
        if at >= place:
            break
        text = token.text[: place - at]
        same = text == token.text or token.delta is None
        kept.append(token if same else Token(text, dict.fromkeys(token.delta or {}, text)))
        at += len(token.text)
    return kept, string


def drawn_length(body: Mapping[str, Any], bounds: tuple[int, int]) -> int:
    """A thinking length that the request's seed decides."""
    return random.Random(body.get("seed")).randint(*bounds)


Thoughts = Callable[[Mapping[str, Any]], Sequence[str]]
