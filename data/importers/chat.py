"""OpenAI-style chat responses: whole ones, batch output lines, and recorded streams.

Knows `choices[].message` with `content`, `reasoning` or `reasoning_content`, think tags inside `content`,
usage counts, and the chunks of a stream (one JSON object or one `data:` line each, told apart by `id`).
The problem is the last user message of the request, where the request was saved beside the response
(`request`, `messages` or `prompt`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from desist.data.importers.places import estimate_tokens, text_boundaries
from desist.data.importers.report import ImportReport, Unusable
from desist.data.schema import Sampling, Trace
from desist.data.splits import problem_id
from desist.data.thinking import split_thinking

__all__ = ["chat_traces", "is_chat", "joined_stream"]

_CHUNK = "chat.completion.chunk"
_REQUEST_FIELDS = ("request", "messages", "prompt")


def is_chat(value: object) -> bool:
    """Whether a record looks like a chat response, a wrapped one, or a chunk of one."""
    body = _body(value) if isinstance(value, Mapping) else None
    return isinstance(body, Mapping) and isinstance(body.get("choices"), list)


def _body(value: Mapping[str, Any]) -> Any:
    """The response itself, out of {request, response} pairs and of batch output lines."""
    inner = value.get("response", value)
    return inner.get("body", inner) if isinstance(inner, Mapping) else inner


def joined_stream(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Put the chunks of each stream together into one response; everything else passes as it is."""
    streams: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    for number, value in values:
        if not isinstance(value, Mapping) or value.get("object") != _CHUNK:
            yield number, value
            continue
        identity = str(value.get("id"))
        whole = streams.setdefault(identity, {"id": identity, "choices": {}})
        lines.setdefault(identity, number)
        for field in ("model", "usage"):
            if value.get(field) is not None:
                whole[field] = value[field]
        for choice in value.get("choices") or ():
            _add_delta(whole["choices"], choice)
    for identity, whole in streams.items():
        yield (
            lines[identity],
            {**whole, "choices": [whole["choices"][index] for index in sorted(whole["choices"])]},
        )


def _add_delta(choices: dict[int, dict[str, Any]], choice: Mapping[str, Any]) -> None:
    index = choice.get("index") or 0
    kept = choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
    for field, text in (choice.get("delta") or {}).items():
        if field in ("content", "reasoning", "reasoning_content") and isinstance(text, str):
            kept["message"][field] = kept["message"].get(field, "") + text
    kept["finish_reason"] = choice.get("finish_reason") or kept["finish_reason"]


def _content(value: object) -> str:
    """Message content as text; of content parts the text ones."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part.get("text", "") for part in value if isinstance(part, Mapping))
    raise Unusable(f"message content is {type(value).__name__} and no text")


def _request(
    value: Mapping[str, Any],
) -> tuple[str, str | tuple[dict[str, Any], ...] | None, Mapping[str, Any]]:
    """Problem text, prompt and request settings, as far as they were saved."""
    saved = next((value[field] for field in _REQUEST_FIELDS if value.get(field)), None)
    settings: Mapping[str, Any] = saved if isinstance(saved, Mapping) else {}
    if settings:
        settings = settings.get("body", settings)
        saved = settings.get("messages") or settings.get("prompt")
    if isinstance(saved, str):
        return saved, saved, settings
    if isinstance(saved, list):
        messages = tuple(dict(message) for message in saved if isinstance(message, Mapping))
        users = [_content(message.get("content")) for message in messages if message.get("role") == "user"]
        return (users[-1] if users else ""), messages, settings
    return "", None, settings


def _count(usage: Mapping[str, Any], *path: str) -> int | None:
    value: Any = usage
    for field in path:
        value = value.get(field) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _token_counts(usage: Mapping[str, Any], reasoning: str, answer: str) -> tuple[int, int, str]:
    thought = _count(usage, "completion_tokens_details", "reasoning_tokens")
    if thought is None:
        thought = _count(usage, "reasoning_tokens")
    total = _count(usage, "completion_tokens")
    if total is not None and thought is not None and thought <= total and (thought > 0 or not reasoning):
        return thought, total - thought, "source"
    if total is not None and reasoning + answer:
        share = round(total * len(reasoning) / len(reasoning + answer))
        return share, total - share, "total from source, parts estimated"
    return estimate_tokens(reasoning), estimate_tokens(answer) + (1 if reasoning else 0), "estimated"


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    known: dict[str, Any] = {}
    for field in ("temperature", "top_p", "seed"):
        if isinstance(settings.get(field), (int, float)) and not isinstance(settings[field], bool):
            known[field] = settings[field]
    limit = settings.get("max_completion_tokens") or settings.get("max_tokens")
    if isinstance(limit, int):
        known["max_tokens"] = limit
    return Sampling(**known)


def chat_traces(value: object, number: int, report: ImportReport) -> list[Trace]:
    """One trace per choice of a response. Raises `Unusable` with the reason where there is none."""
    if not isinstance(value, Mapping):
        raise Unusable(f"the record is {type(value).__name__} and no object")
    body = _body(value)
    if not isinstance(body, Mapping) or not isinstance(body.get("choices"), list) or not body["choices"]:
        error = body.get("error") if isinstance(body, Mapping) else None
        raise Unusable("an error response" if error else "no choices in the response")
    choices = body["choices"]
    problem, prompt, settings = _request(value)
    identity = str(value.get("custom_id") or body.get("id") or f"line-{number}")
    if not problem.strip():
        report.notes["no request beside the response: problem unknown"] += 1
    traces = []
    for order, choice in enumerate(choices):
        own = identity if len(choices) == 1 else f"{identity}/{order}"
        trace = _trace(choice, own, body, len(choices))
        fallback = f"unknown-{identity}"
        traces.append((trace, problem_id(problem) if problem.strip() else fallback))
    return [_with_request(trace, own_id, problem, prompt, settings) for trace, own_id in traces]


def _trace(choice: object, identity: str, body: Mapping[str, Any], n_choices: int) -> Trace:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise Unusable("a choice without a message")
    content = _content(message.get("content"))
    reasoning = _content(message.get("reasoning_content") or message.get("reasoning"))
    closed = True
    if not reasoning:
        reasoning, content, closed = split_thinking(content)
    if not reasoning.strip() and not content.strip() and not message.get("tool_calls"):
        raise Unusable("neither reasoning nor content")
    raw_usage = body.get("usage")
    usage: Mapping[str, Any] = raw_usage if isinstance(raw_usage, Mapping) and n_choices == 1 else {}
    n_reasoning, n_answer, counted = _token_counts(usage, reasoning, content)
    provenance: dict[str, Any] = {"format": "chat", "token_count": counted, "positions": "estimated"}
    for field, found in (
        ("finish_reason", choice.get("finish_reason")),
        ("tool_calls", message.get("tool_calls")),
    ):
        if found is not None:
            provenance[field] = found
    return Trace(
        trace_id=identity,
        problem_id=identity,
        model=str(body.get("model") or ""),
        problem="",
        reasoning=reasoning,
        answer=content,
        n_reasoning_tokens=n_reasoning,
        n_answer_tokens=n_answer,
        truncated=not closed or choice.get("finish_reason") == "length",
        boundaries=text_boundaries(reasoning, n_reasoning),
        provenance=provenance,
    )


def _with_request(
    trace: Trace,
    identity: str,
    problem: str,
    prompt: str | tuple[dict[str, Any], ...] | None,
    settings: Mapping[str, Any],
) -> Trace:
    from dataclasses import replace

    return replace(trace, problem_id=identity, problem=problem, prompt=prompt, sampling=_sampling(settings))
