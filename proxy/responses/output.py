"""Output items and their events, made as the text comes: thinking, a message, calls of functions.

One item is open at a time; what belongs to another closes it. A stream and a complete response are made by
the same steps, so they hold the same items. Does not know the response around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from desist.proxy.answering.showing import Shown

__all__ = ["Event", "OutputItems"]

Event = dict[str, Any]
"""One event, without its sequence number."""


class OutputItems:
    """The items of one response. `new_id` makes the part of an id after its prefix.

    `logprobs`: whether texts carry them.
    """

    def __init__(self, new_id: Callable[[], str], *, logprobs: bool = False) -> None:
        self._new_id, self._logprobs = new_id, logprobs
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []
        self._kept: list[dict[str, Any]] = []  # log-probabilities of the open message
        self._call: int | None = None  # the index that the open call has among those of the message

    def take(self, shown: Shown, probabilities: object = None) -> Iterator[Event]:
        """What was newly generated. `probabilities`: the chat's `logprobs` object of it."""
        if shown.reasoning:
            yield from self._write("reasoning", shown.reasoning)
        if shown.content:
            yield from self._write("message", shown.content)
        if self._logprobs and isinstance(probabilities, Mapping):
            self._keep(probabilities.get("content"))
        calls = shown.extra.get("tool_calls")
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, Mapping):
                yield from self._take_call(call, number)

    def finish(self, *, complete: bool) -> Iterator[Event]:
        """The end. `complete`: whether the last item is whole."""
        yield from self._close("completed" if complete else "incomplete")

    def _write(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close("completed")
            yield from self._begin(kind)
        self._texts.append(text)
        name = "response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"
        event = {"type": name, **self._place(), "content_index": 0, "delta": text}
        yield event | ({} if kind == "reasoning" else {"logprobs": []})

    def _begin(self, kind: str) -> Iterator[Event]:
        if kind == "reasoning":
            item = {"id": f"rs_{self._new_id()}", "type": kind, "summary": [], "content": []}
        else:
            item = {"id": f"msg_{self._new_id()}", "type": kind, "role": "assistant", "content": []}
        yield from self._add(item)
        part = self._part(kind, "")
        yield {"type": "response.content_part.added", **self._place(), "content_index": 0, "part": part}

    def _add(self, item: dict[str, Any]) -> Iterator[Event]:
        self._open = item | {"status": "in_progress"}
        self.items.append(self._open)
        self._texts, self._kept = [], []
        place = {"output_index": len(self.items) - 1}
        yield {"type": "response.output_item.added", **place, "item": dict(self._open)}

    def _take_call(self, call: Mapping[str, Any], number: int) -> Iterator[Event]:
        """A piece of a call, or a whole one."""
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        index = call.get("index", number)
        if self._call != index or self._open is None or self._open["type"] != "function_call":
            yield from self._close("completed")
            self._call = index
            call_id = call.get("id") or f"call_{self._new_id()}"
            yield from self._add(
                {
                    "id": f"fc_{self._new_id()}",
                    "type": "function_call",
                    "call_id": call_id,
                    "name": str(function.get("name") or ""),
                    "arguments": "",
                }
            )
        piece = function.get("arguments")
        if isinstance(piece, str) and piece:
            self._texts.append(piece)
            yield {"type": "response.function_call_arguments.delta", **self._place(), "delta": piece}

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        text, kind = "".join(self._texts), item["type"]
        if kind == "function_call":
            item["arguments"] = text
            told = {"name": item["name"], "arguments": text}
            yield {"type": "response.function_call_arguments.done", **self._place(), **told}
        else:
            part = self._part(kind, text)
            done = {**self._place(), "content_index": 0}
            if kind == "reasoning":
                yield {"type": "response.reasoning_text.done", **done, "text": text}
            else:
                logprobs = part.get("logprobs") or []
                yield {"type": "response.output_text.done", **done, "text": text, "logprobs": logprobs}
            yield {"type": "response.content_part.done", **done, "part": part}
            item["content"] = [part]
        item["status"] = status
        place = {"output_index": len(self.items) - 1}
        yield {"type": "response.output_item.done", **place, "item": dict(item)}
        self._open = self._call = None
        self._texts = []

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.items) - 1}

    def _part(self, kind: str, text: str) -> dict[str, Any]:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        return part | ({"logprobs": list(self._kept)} if self._logprobs else {})

    def _keep(self, tokens: object) -> None:
        if isinstance(tokens, list) and self._open is not None and self._open["type"] == "message":
            self._kept.extend(token for token in tokens if isinstance(token, dict))
