"""The JSON of chat and text completions, streamed and whole, for n choices that write the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.fakes.upstream.script import Token

__all__ = ["PROMPT_TOKENS", "Shape"]

PROMPT_TOKENS = 11


class Shape:
    """The objects of one answer. `prompt_ids`: None where no token ids were asked for, or can be given."""

    def __init__(
        self,
        body: Mapping[str, Any],
        chat: bool,
        prompt_ids: Sequence[int] | None,
        token: Callable[[str], int],
        *,
        running: bool,
        final: bool,
        details: bool,
    ) -> None:
        options = body.get("stream_options") or {}
        self.chat, self._ids, self._token = chat, prompt_ids, token
        self._running = running and bool(options.get("continuous_usage_stats"))
        self._final = final and bool(options.get("include_usage"))
        self._details, self._logprobs = details, body.get("logprobs")
        self._n = body.get("n") or 1
        kind = "chat.completion" if chat else "text_completion"
        self._head = {"id": "u", "object": kind, "created": 1, "model": body.get("model") or "up"}
        self._thought = 0

    def opening(self) -> bytes:
        """The role chunk of a chat; nothing for a text completion."""
        if not self.chat:
            return b""
        more = {} if self._ids is None else {"prompt_token_ids": list(self._ids)}
        role = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": index, "delta": role, "finish_reason": None}], 0, **more)
            for index in range(self._n)
        )

    def pieces(self, tokens: Sequence[Token], count: int) -> list[bytes]:
        """One chunk a choice for these tokens; `count` were written by its end."""
        delta: dict[str, Any] = {}
        for token in tokens:
            for name, value in (token.delta or {}).items():
                delta[name] = delta[name] + value if name in delta else value
        self._thought += sum(bool(token.delta and "content" not in token.delta) for token in tokens)
        if not delta and self._ids is None:
            return []
        return [
            self._event([self._choice(index, delta, tokens, count)], count * self._n)
            for index in range(self._n)
        ]

    def _choice(
        self, index: int, delta: Mapping[str, Any], tokens: Sequence[Token], count: int
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": None}
        choice |= {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        if self._logprobs:
            choice["logprobs"] = self._probabilities(tokens)
        if self._ids is not None:
            choice["token_ids"] = [self._token(token.text) for token in tokens]
            if not self.chat and count == len(tokens):
                choice["prompt_token_ids"] = list(self._ids)
        return choice

    def _probabilities(self, tokens: Sequence[Token]) -> dict[str, Any]:
        if self.chat:
            told = [
                {"token": t.text, "logprob": -0.5, "bytes": list(t.text.encode()), "top_logprobs": []}
                for t in tokens
            ]
            return {"content": told}
        return {"tokens": [t.text for t in tokens], "token_logprobs": [-0.5] * len(tokens)}

    def deltas(self, choices: Sequence[tuple[int, Mapping[str, Any]]]) -> bytes:
        """One chunk with these choices."""
        told = [
            {"index": index, "finish_reason": None}
            | ({"delta": delta} if self.chat else {"text": delta.get("content", "")})
            for index, delta in choices
        ]
        return self._event(told, 0)

    def closing(self, finish: str, string: str | None) -> bytes:
        """The last chunk of each choice."""
        last = {"finish_reason": finish, "stop_reason": string}
        empty: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return b"".join(self._event([{"index": index, **empty, **last}], 0) for index in range(self._n))

    def usage_event(self, count: int) -> bytes:
        if not self._final:
            return b""
        told = {**self._head, "choices": [], "usage": self.usage(count * self._n)}
        return b"data: " + json.dumps(told).encode() + b"\n\n"

    def usage(self, count: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": count,
            "total_tokens": PROMPT_TOKENS + count,
        }
        if self._details:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._thought * self._n}
        return usage

    def whole(self, tokens: Sequence[Token], finish: str, string: str | None) -> dict[str, Any]:
        """The whole answer as one object."""
        message: dict[str, Any] = {"role": "assistant"}
        calls: list[dict[str, Any]] = []
        for token in tokens:
            for name, value in (token.delta or {}).items():
                if name != "tool_calls":
                    message[name] = message.get(name, "") + value
                elif "id" in value[0]:
                    calls.append({key: each for key, each in value[0].items() if key != "index"})
                else:
                    function = calls[-1]["function"]
                    joined = function["arguments"] + value[0]["function"]["arguments"]
                    calls[-1]["function"] = {**function, "arguments": joined}
        if calls:
            message["tool_calls"] = calls
        self._thought = sum(bool(token.delta and "content" not in token.delta) for token in tokens)
        choice: dict[str, Any] = {"finish_reason": finish, "stop_reason": string}
        choice |= {"message": message} if self.chat else {"text": message.get("content", "")}
        if self._logprobs:
            choice["logprobs"] = self._probabilities(tokens)
        if self._ids is not None:
            choice["token_ids"] = [self._token(token.text) for token in tokens]
        choices = [{"index": index, **choice} for index in range(self._n)]
        told = {**self._head, "choices": choices, "usage": self.usage(len(tokens) * self._n)}
        return told if self._ids is None else {**told, "prompt_token_ids": list(self._ids)}

    def _event(self, choices: list[dict[str, Any]], count: int, **more: Any) -> bytes:
        told = {**self._head, "system_fingerprint": "fp", "choices": choices, **more}
        if self._running:
            told["usage"] = self.usage(count)
        return b"data: " + json.dumps(told, ensure_ascii=False).encode() + b"\n\n"
