"""Log probabilities of text completions in the form of chat completions.

Knows both of OpenAI's shapes. Numbers are handed on as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_chat"]


def as_chat(found: object, top: int) -> dict[str, Any] | None:
    """`logprobs` of a text completion's choice as chat's, with the `top` best others; None: none came."""
    if not isinstance(found, Mapping) or not isinstance(found.get("tokens"), list):
        return None
    tokens, values = found["tokens"], found.get("token_logprobs") or []
    tops = found.get("top_logprobs") or []
    content = []
    for place, token in enumerate(tokens):
        value = values[place] if place < len(values) else None
        best = tops[place] if place < len(tops) and isinstance(tops[place], Mapping) else {}
        ranked = sorted(best.items(), key=lambda item: -(item[1] if item[1] is not None else -9999.0))
        entry = _entry(token, value)
        entry["top_logprobs"] = [_entry(word, each) for word, each in ranked[:top]]
        content.append(entry)
    return {"content": content}


def _entry(token: Any, value: Any) -> dict[str, Any]:
    text = str(token)
    return {"token": text, "logprob": value, "bytes": list(text.encode("utf-8", "replace"))}
