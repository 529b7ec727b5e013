"""Tool calls as values: a name and arguments, from any of the JSON shapes that servers write.

Known: OpenAI's `tool_calls` and `function_call`, the items of its Responses API, Anthropic's `tool_use`
blocks, a whole response or message that holds such, and bare {"name", "arguments"} objects, also in lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from desist.data.judging.json_values import NOTHING, read_json, same_json
from desist.data.judging.verdict import Unjudgeable

__all__ = ["Call", "Untyped", "arguments_of", "calls_in", "same_calls"]

_ARGUMENTS = ("arguments", "input", "parameters", "args")
_NESTED = ("tool_calls", "function_call", "message", "choices", "output", "content")


@dataclass(frozen=True, slots=True)
class Untyped:
    """A parameter that a markup gives as text: a schema alone could tell whether "5" is a number."""

    text: str

    def same(self, other: Any) -> bool:
        if isinstance(other, Untyped) and self.text == other.text:
            return True
        if isinstance(other, str):
            return self.text == other
        mine = self._value()
        theirs = other._value() if isinstance(other, Untyped) else other
        return mine is not NOTHING and theirs is not NOTHING and same_json(mine, theirs)

    def _value(self) -> Any:
        try:
            return read_json(self.text)
        except Unjudgeable:
            return NOTHING


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments`: a JSON value, or a dict of `Untyped` texts."""

    name: str
    arguments: Any

    def same(self, other: Call) -> bool:
        return self.name == other.name and _same_arguments(self.arguments, other.arguments)


def _same_arguments(a: Any, b: Any) -> bool:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return same_json(a, b)
    return a.keys() == b.keys() and all(_same_argument(value, b[key]) for key, value in a.items())


def _same_argument(a: Any, b: Any) -> bool:
    if isinstance(a, Untyped):
        return a.same(b)
    return b.same(a) if isinstance(b, Untyped) else same_json(a, b)


def same_calls(a: Sequence[Call], b: Sequence[Call]) -> bool:
    """Whether each call of one has its own equal in the other. Calls made at once have no order."""
    if len(a) != len(b):
        return False
    partner: dict[int, int] = {}

    def placed(mine: int, tried: set[int]) -> bool:
        for theirs, call in enumerate(b):
            if theirs not in tried and a[mine].same(call):
                tried.add(theirs)
                if theirs not in partner or placed(partner[theirs], tried):
                    partner[theirs] = mine
                    return True
        return False

    return all(placed(mine, set()) for mine in range(len(a)))


def arguments_of(found: Any) -> Any:
    """Arguments as a value: servers send them as JSON text or as an object; none at all is an empty one.

    Raises `Unjudgeable` for a text that is no JSON.
    """
    if isinstance(found, str):
        value = read_json(found) if found.strip() else {}
        if value is NOTHING:
            raise Unjudgeable("the arguments of a tool call are no JSON")
        return {} if value is None else value
    return {} if found is None else found


def calls_in(value: Any) -> list[Call] | None:
    """The calls of a JSON value, in their order; None where it is of no shape that holds calls."""
    if isinstance(value, list):
        found = [calls_in(item) for item in value]
        kept = [calls for calls in found if calls is not None]
        return [call for calls in kept for call in calls] if kept else None
    if not isinstance(value, dict):
        return None
    if (call := _call(value)) is not None:
        return [call]
    for key in _NESTED:
        if isinstance(value.get(key), (dict, list)) and (calls := calls_in(value[key])) is not None:
            return calls
    return [] if value.get("tool_calls") == [] else None


def _call(value: dict[str, Any]) -> Call | None:
    inner = value.get("function", value)
    if isinstance(inner, dict) and isinstance(inner.get("name"), str):
        for key in _ARGUMENTS:
            if key in inner:
                return Call(inner["name"], arguments_of(inner[key]))
        if inner is not value or value.get("type") in ("function_call", "tool_use", "function"):
            return Call(inner["name"], {})
    return None
