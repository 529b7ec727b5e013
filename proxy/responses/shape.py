"""The response object and the events of its stream, around the output items.

Knows OpenAI's response objects. Sequence numbers begin at 0; an event's name stands in its `event:` line
too. The stream ends with `response.completed`, `.incomplete` or `.failed`, and no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.answering.showing import Showing, Shown
from desist.proxy.answering.typed_shape import TypedShape
from desist.proxy.controls.values import ReasoningFormat
from desist.proxy.engines.base import Delta, Finished
from desist.proxy.errors import ApiError, error_body
from desist.proxy.responses.output import Event, OutputItems
from desist.proxy.responses.schema import ResponsesBody
from desist.proxy.sse import write_event

__all__ = ["Asked", "ResponsesShape"]

_encode = msgspec.json.Encoder().encode
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the response says of its request. `kept`: whether it can be read again by its id.

    `temperature` and `top_p`: None where the server behind uses its own.
    """

    body: ResponsesBody
    raw: Mapping[str, Any]
    model: str
    temperature: float | None
    top_p: float | None
    kept: bool
    logprobs: bool


class ResponsesShape(TypedShape):
    """One response. `keep` is told of it when it has come to its end."""

    def __init__(
        self,
        asked: Asked,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        how: ReasoningFormat,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._asked, self._clock, self._keep = asked, clock, keep
        self._showing = Showing(how, "reasoning")
        self._output = OutputItems(new_id, logprobs=asked.logprobs)
        self._head = {"id": f"resp_{new_id()}", "object": "response", "created_at": int(clock())}
        self._sent = 0

    def response(
        self, buffer: ChoiceBuffer, usage: Mapping[str, Any], told: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        shown = self._showing.whole(buffer.reasoning, buffer.content, buffer.extra)
        for _ in self._output.take(shown, buffer.choice_extra.get("logprobs")):
            pass
        _, whole = self._ended(buffer.finished, usage, told)
        return whole

    def begin(self) -> bytes:
        return self._written(
            {"type": name, "response": self._object("in_progress")}
            for name in ("response.created", "response.in_progress")
        )

    def take(self, delta: Delta) -> bytes:
        shown = self._showing.delta(0, delta)
        if shown is None:
            return b""
        return self._written(self._output.take(shown, (delta.choice_extra or {}).get("logprobs")))

    def end(self, finished: Finished, usage: Mapping[str, Any], told: Mapping[str, Any] | None) -> bytes:
        rest = self._showing.rest(0)
        events = list(self._output.take(Shown("", rest, {}))) if rest else []
        more, whole = self._ended(finished, usage, told)
        last = {"type": f"response.{whole['status']}", "response": whole}
        return self._written([*events, *more, last])

    def failure(self, error: ApiError) -> bytes:
        events = list(self._output.finish(complete=False))
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = self._object("failed") | {"error": {"code": code, "message": str(error)}}
        events.append({"type": "response.failed", "response": failed})
        body = error_body(str(error), error.status, param=error.param, code=error.code)["error"]
        # Clients look for `error` inside; the flat fields are those of OpenAI's own error event.
        flat = {"code": body["code"], "message": body["message"], "param": body["param"]}
        events.append({"type": "error", **flat, "error": body | {"status": error.status}})
        return self._written(events)

    def _ended(
        self, finished: Finished, usage: Mapping[str, Any], told: Mapping[str, Any] | None
    ) -> tuple[list[Event], dict[str, Any]]:
        why = _INCOMPLETE.get(finished.finish_reason)
        events = list(self._output.finish(complete=why is None))
        whole = self._object("completed" if why is None else "incomplete")
        whole |= {"usage": _usage(usage), "incomplete_details": why and {"reason": why}}
        if why is None:
            whole["completed_at"] = int(self._clock())
        if told is not None:
            whole["desist"] = dict(told)
        self._keep(whole)
        return events, whole

    def _object(self, status: str) -> dict[str, Any]:
        asked, body, raw = self._asked, self._asked.body, self._asked.raw
        effort = body.reasoning.effort if body.reasoning else None
        summary = (body.reasoning.summary or body.reasoning.generate_summary) if body.reasoning else None
        return {
            **self._head,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": asked.model,
            "output": [dict(item) for item in self._output.items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None if summary == "none" else summary},
            "store": asked.kept,
            "temperature": asked.temperature,
            "text": raw.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [dict(tool) for tool in body.tools or []],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _written(self, events: Iterable[Event]) -> bytes:
        out = bytearray()
        for event in events:
            out += write_event(_encode(event | {"sequence_number": self._sent}), event["type"])
            self._sent += 1
        return bytes(out)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Chat's usage in other words. Cached tokens: the server's count, else 0, since a count must be there."""
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": cached.get("cached_tokens") or 0,
            "cache_write_tokens": cached.get("cache_write_tokens") or 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {
            "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        },
        "total_tokens": usage["total_tokens"],
    }
