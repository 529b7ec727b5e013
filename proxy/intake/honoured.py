"""What an engine of our own can do of a request, and what it must refuse.

Knows fields that change an answer and messages of text. A server behind judges these itself, so nothing here
is for an engine that hands requests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from desist.data.schema import Message
from desist.proxy.errors import ApiError, shorten
from desist.proxy.intake.history import read_reasoning

__all__ = ["as_text", "refuse_unhonoured"]

# Fields that change the answer, and the values by which they ask for nothing.
_IDLE: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "audio": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "structured_outputs": (None,),
}


def refuse_unhonoured(raw: Mapping[str, Any]) -> None:
    """Refuse fields that would change the answer. Raises `ApiError` 400 naming the first of them."""
    for key, idle in _IDLE.items():
        value = raw.get(key)
        if any(value == nothing and isinstance(value, bool) == isinstance(nothing, bool) for nothing in idle):
            continue
        raise ApiError(
            400,
            f"'{key}' is {shorten(value)}: this engine cannot honour it. Leave it out, or serve the model "
            "with vLLM and put desist before it (--upstream URL).",
            param=key,
            code="not_offered",
        )


def as_text(message: Message, index: int) -> Message:
    """The message with text parts joined, for engines that read texts only.

    Earlier thinking goes under both its names: a chat template reads one of them.
    """
    if (thought := read_reasoning(message)) is not None:
        message = {**message, "reasoning": thought, "reasoning_content": thought}
    content = message.get("content")
    if not isinstance(content, list):
        return message if content is not None else {**message, "content": ""}
    for part in content:
        if part.get("type", "text") not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise ApiError(
                400,
                f"'messages.{index}.content' has a part of type {shorten(part.get('type'))}: this engine "
                "reads text only. Send text parts.",
                param=f"messages.{index}.content",
                code="not_offered",
            )
    return {**message, "content": "".join(part["text"] for part in content)}
