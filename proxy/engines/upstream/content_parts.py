"""Text that comes as something else than a text: Mistral's content parts, and what nobody expects.

Knows shapes of parts. Nothing that can be read as text is lost; what cannot is told as the upstream's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from desist.data.errors import UpstreamError

__all__ = ["as_texts"]


def as_texts(reasoning: Any, content: Any) -> tuple[str, str]:
    """(reasoning, content) as texts; parts of type "thinking" in the content are reasoning.

    Raises `UpstreamError` (502) for a number, an object, or a part without a text.
    """
    thought, said = [_text(reasoning)], []
    for part in content if isinstance(content, list) else (content,):
        if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning"):
            thought += _inner(part.get("thinking", part.get("text")))
        else:
            said.append(_text(part))
    return "".join(thought), "".join(said)


def _inner(value: Any) -> Iterator[str]:
    for part in value if isinstance(value, list) else (value,):
        yield _text(part)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("text", value)
    if value is None or isinstance(value, str):
        return value or ""
    raise UpstreamError(
        f"the upstream sent a message whose text is of type {type(value).__name__}. Check that the URL "
        "points at an OpenAI-compatible server.",
        502,
    )
