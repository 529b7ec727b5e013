"""Collects the events of one choice into a complete message.

Knows deltas as the engines give them, pass-through fields included. Does not know response shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from desist.data.errors import EngineError
from desist.proxy.engines.base import Delta, Event, Finished

__all__ = ["ChoiceBuffer", "is_silent"]

_NAMES = ("id", "type", "role", "name")  # come whole, never in pieces


class ChoiceBuffer:
    """One choice of one request, as far as it has come."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._finished: Finished | None = None
        self.extra: dict[str, Any] = {}
        self.choice_extra: dict[str, Any] = {}

    def add(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Finished):
            self._finished = event
            return
        if event.text:
            self._texts[event.channel].append(event.text)
        if event.extra:
            _merge(self.extra, event.extra)
        if event.choice_extra:
            _merge(self.choice_extra, event.choice_extra)

    @property
    def reasoning(self) -> str:
        return "".join(self._texts["reasoning"])

    @property
    def content(self) -> str:
        return "".join(self._texts["content"])

    @property
    def finished(self) -> Finished:
        """The end of the choice. Raises `EngineError` if there was none."""
        if self._finished is None:
            raise EngineError("the engine ended a choice without saying so. This is a fault of the engine.")
        return self._finished


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Streamed pieces of pass-through fields, put together: texts append, lists of indexed objects merge."""
    for key, value in new.items():
        old = into.get(key)
        if isinstance(value, list) and value and all(isinstance(v, dict) and "index" in v for v in value):
            into[key] = _merge_indexed(old if isinstance(old, list) else [], value)
        elif isinstance(old, str) and isinstance(value, str) and key not in _NAMES:
            into[key] = old + value
        elif isinstance(old, list) and isinstance(value, list):
            into[key] = [*old, *value]
        elif isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif value is not None or key not in into:
            into[key] = dict(value) if isinstance(value, dict) else value


def _merge_indexed(old: list[dict[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    for item in new:
        known = next((each for each in old if each.get("index") == item["index"]), None)
        if known is None:
            old.append(known := {"index": item["index"]})
        _merge(known, {key: value for key, value in item.items() if key != "index"})
    return old


def is_silent(delta: Delta) -> bool:
    """Whether the delta carries nothing at all."""
    return not delta.text and not delta.extra and not delta.choice_extra
