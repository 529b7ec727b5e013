"""Input items of the Responses API as chat messages.

One message of a chat may be several items (thinking, a text, calls): they are joined again. An item that a
chat cannot hold is refused, naming its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from desist.proxy.errors import ApiError, shorten

__all__ = ["chat_messages", "input_items"]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def input_items(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input as items; a text is one message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [{"type": "message", **item} if "role" in item else dict(item) for item in given]


def chat_messages(
    items: Sequence[Mapping[str, Any]], instructions: str | None = None, *, first: int = 0
) -> list[dict[str, Any]]:
    """The messages of a chat. Raises `ApiError` 400 that names `input[n]`; the item `first` has n = 0.

    Instructions stand first, in one system message with the texts of leading system messages: many chat
    templates take no second one.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        _add(messages, item, f"input[{number - first}]")
    while len(messages) > 1 and all(
        message["role"] == "system" and isinstance(message["content"], str) for message in messages[:2]
    ):
        messages[:2] = [{"role": "system", "content": "\n\n".join(each["content"] for each in messages[:2])}]
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        _message(messages, item, where)
    elif kind == "reasoning":
        text = _reasoning(item)
        last = _assistant(messages, without=("reasoning", "content", "tool_calls"))
        last["reasoning"] = text
    elif kind == "function_call":
        call = {"name": _text(item, "name", where), "arguments": _text(item, "arguments", where)}
        told = {"id": _text(item, "call_id", where), "type": "function", "function": call}
        _assistant(messages, without=()).setdefault("tool_calls", []).append(told)
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else _parts(output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", where), "content": content})
    else:
        raise _refused(
            f"{where}.type",
            f"is {shorten(kind)}: such an item cannot be part of a chat. Send messages, reasoning, "
            "function_call and function_call_output.",
        )


def _message(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(f"{where}.role", f"is {shorten(role)}. Send one of: {', '.join(_ROLES)}.")
    content = item.get("content")
    found = content if isinstance(content, str) else _parts(content, f"{where}.content")
    if role == "assistant":
        _assistant(messages, without=("content", "tool_calls"))["content"] = found
    else:
        messages.append({"role": _ROLES[role], "content": found})


def _assistant(messages: list[dict[str, Any]], *, without: tuple[str, ...]) -> dict[str, Any]:
    """The assistant's message that the item belongs to: the last one, if it holds none of `without` yet."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) for name in without):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _reasoning(item: Mapping[str, Any]) -> str:
    """The thoughts in an item: whole, else as far as a summary tells them; none where they are encrypted."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return "".join(part.get("text") or "" for part in parts if isinstance(part, Mapping))
    return ""


def _parts(content: object, where: str) -> str | list[dict[str, Any]]:
    """Content parts as a chat has them; texts alone as one text."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise _refused(where, f"is {shorten(content)}. Send a text or a list of content parts.")
    parts = [_part(part, f"{where}[{number}]") for number, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": _text(part, "text", where)}
    if kind == "refusal":
        return {"type": "text", "text": _text(part, "refusal", where)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind in ("input_audio", "input_video", "video_url", "image_url"):
        return dict(part)  # as chat completions have it already
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        held = {name: part[name] for name in ("file_data", "filename") if part.get(name)}
        return {"type": "file", "file": held}
    raise _refused(
        where,
        f"is {shorten(dict(part), 80)}: it cannot be part of a chat here; files are not fetched by id. "
        "Send input_text, or input_image with an image_url.",
    )


def _text(held: Mapping[str, Any], name: str, where: str) -> str:
    found = held.get(name)
    if not isinstance(found, str):
        raise _refused(f"{where}.{name}", f"is {shorten(found)}. Send a text.")
    return found


def _refused(where: str, why: str) -> ApiError:
    return ApiError(400, f"'{where}' {why}", param=where, code="invalid_value")
