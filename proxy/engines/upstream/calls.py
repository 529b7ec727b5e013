"""Tool calls out of a model's own markup: Qwen's and Hermes' `<tool_call>`, with JSON or `<function=` inside.

Knows the markup and OpenAI's `tool_calls` objects. What is no call that can be read stays text, so that
nothing is lost. Knows nothing of thinking.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from desist.controller.thinking import prefix_tail
from desist.data.tool_markup import function_form

__all__ = ["CallParser"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CODED = frozenset({"integer", "number", "boolean", "object", "array", "null"})


class CallParser:
    """Reads an answer in pieces of any size; gives back its text and its calls, each call once it is closed.

    `tools` are those of the request: their schemas tell which parameters of the `<function=` form are no
    texts. `parallel`: whether more than one call may be handed on. A call is a dict of OpenAI's streaming
    form: index, id, type, function {name, arguments}.
    """

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        self._types = {name: _types(tool) for tool in tools if (name := _name(tool))}
        self._parallel, self._new_id = parallel, new_id
        self._held = self._gap = ""  # `_gap`: white space before the call that is open
        self._inside = False
        self._after_call = False
        #: Calls handed on.
        self.n_calls = 0

    def feed(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The text and the calls that are certain after `text`."""
        self._held += text
        shown: list[str] = []
        calls: list[dict[str, Any]] = []
        while self._held:
            if self._inside:
                end = self._held.find(_CLOSE)
                if end < 0:
                    break
                inner, self._held = self._held[:end], self._held[end + len(_CLOSE) :]
                self._inside = False
                self._close(inner, shown, calls)
                continue
            start = self._held.find(_OPEN)
            if start >= 0:
                before = self._held[:start]
                self._gap = before[len(before.rstrip()) :]
                self._text(before.rstrip(), shown)
                self._held = self._held[start + len(_OPEN) :]
                self._inside = True
                continue
            keep = prefix_tail(self._held, _OPEN)
            blank = self._held[: len(self._held) - keep]
            keep += len(blank) - len(blank.rstrip())  # white space before a call belongs to it
            self._text(self._held[: len(self._held) - keep], shown)
            self._held = self._held[len(self._held) - keep :]
            break
        return "".join(shown), calls

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """What was held back, at the end: an unclosed call is one if it can be read all the same."""
        shown: list[str] = []
        calls: list[dict[str, Any]] = []
        held, self._held = self._held, ""
        if self._inside:
            self._inside = False
            self._close(held, shown, calls, closed=False)
        elif not (self._after_call and not held.strip()):
            shown.append(held)
        return "".join(shown), calls

    def _text(self, text: str, shown: list[str]) -> None:
        if text and not (self._after_call and not text.strip()):
            self._after_call = False
            shown.append(text)

    def _close(
        self, inner: str, shown: list[str], calls: list[dict[str, Any]], *, closed: bool = True
    ) -> None:
        function = self._function(inner)
        if function is None:
            shown.append(self._gap + _OPEN + inner + (_CLOSE if closed else ""))
            self._after_call = False
            return
        self._after_call = True
        if self.n_calls and not self._parallel:
            return
        calls.append({"index": self.n_calls, "id": self._new_id(), "type": "function", "function": function})
        self.n_calls += 1

    def _function(self, inner: str) -> dict[str, str] | None:
        form = function_form(inner)
        if form is not None:
            name, kinds = form.name, self._types.get(form.name, {})
            arguments: Any = {key: _value(text, kinds.get(key)) for key, text in form.texts.items()}
        else:
            try:
                found = msgspec.json.decode(inner)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                return None
            if not isinstance(found, dict) or not isinstance(found.get("name"), str):
                return None
            name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return {"name": name, "arguments": text}


def _name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _types(tool: Mapping[str, Any]) -> dict[str, str]:
    """The types of a tool's parameters, as far as its schema says one."""
    parameters = tool["function"].get("parameters")
    found = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {
        key: schema["type"]
        for key, schema in found.items()
        if isinstance(schema, Mapping) and isinstance(schema.get("type"), str)
    }


def _value(text: str, kind: str | None) -> Any:
    """A parameter's text as a value of its type; a text where it has none, or is none of it."""
    if kind not in _CODED:
        return text
    try:
        return msgspec.json.decode(text.strip() if kind != "boolean" else text.strip().lower())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
