"""Thinking of earlier turns in a request's messages, under the one name that the server reads.

Knows both names, `reasoning` and `reasoning_content`. A server that reads both would see a text twice where
both stand, so one goes on. Knows nothing of servers but that name. Messages are copied, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["HistoryField", "read_reasoning", "translated"]

HistoryField = Literal["reasoning", "reasoning_content"]
_NAMES: tuple[HistoryField, ...] = ("reasoning", "reasoning_content")


def read_reasoning(message: Mapping[str, Any]) -> Any:
    """The thinking of a message; the newer name wins where two texts differ. None: there is none."""
    return next((message[name] for name in _NAMES if message.get(name) is not None), None)


def translated(messages: Sequence[Any], wanted: HistoryField | None) -> list[Any]:
    """Messages whose thinking stands under `wanted` alone; None: under the name that the client chose.

    Where the client sent both and nobody knows better, the newer name is kept. Messages without thinking, and
    anything that is no object, are passed on as the very same objects.
    """
    return [_one(each, wanted) for each in messages]


def _one(message: Any, wanted: HistoryField | None) -> Any:
    if not isinstance(message, Mapping):
        return message
    given = [name for name in _NAMES if name in message]
    if not given or message.get("role") not in ("assistant", None):
        return message
    text = read_reasoning(message)
    name = wanted or next((each for each in given if message[each] is not None), given[0])
    if given == [name]:
        return message
    return {key: value for key, value in message.items() if key not in _NAMES} | {name: text}
