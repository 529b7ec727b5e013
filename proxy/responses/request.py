"""Makes a chat request of a request to the Responses API, or says what of it cannot be done.

Every field is translated, or passed on as it stands, or refused. Does not look at thinking: what the fields
say about it is read by `desist.proxy.controls`, as on every route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from desist.proxy.control import Resolved
from desist.proxy.errors import ApiError, shorten
from desist.proxy.responses.items import chat_messages
from desist.proxy.responses.schema import ResponsesBody

__all__ = ["LOGPROBS", "as_sent", "chat_body", "renamed"]

LOGPROBS = "message.output_text.logprobs"
# What responses may be asked to include: the first is done, the others belong to tools that are refused
# anyway, or (encrypted thinking) to a form that thinking does not have here: it is given as it is.
_INCLUDES = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
# Fields that a chat request has under another name, or not at all.
_TRANSLATED = frozenset(
    {
        "input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning", "include",
        "metadata", "store", "previous_response_id", "truncation", "background", "conversation", "prompt",
        "stream_options", "max_tool_calls", "top_logprobs", "service_tier", "safety_identifier",
    }
)  # fmt: skip
_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
_CHAT_NAME = re.compile(rf"(?<![\w.])({'|'.join(_NAMES)})(?![\w.])")


def chat_body(
    body: ResponsesBody, raw: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *, earlier: int
) -> dict[str, Any]:
    """The body of the chat request. `items`: the whole conversation, of which `earlier` were there before.

    Raises `ApiError` 400 that names a field of the Responses API.
    """
    _refuse(body, raw)
    out = {name: value for name, value in raw.items() if name not in _TRANSLATED}
    out["messages"] = chat_messages(items, body.instructions, first=earlier)
    if body.max_output_tokens is not None:
        out["max_tokens"] = body.max_output_tokens  # the name that every server knows
    if body.reasoning is not None:
        rest = {name: value for name, value in raw["reasoning"].items() if value is not None}
        effort = rest.pop("effort", None)
        rest.pop("summary", None)
        rest.pop("generate_summary", None)
        out |= ({"reasoning": rest} if rest else {}) | (
            {} if effort is None else {"reasoning_effort": effort}
        )
    tools = _tools(body.tools or [])
    choice: str | Mapping[str, Any] | None = body.tool_choice
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools, choice)
    if tools:
        out["tools"] = tools
        if choice is not None:
            out["tool_choice"] = _choice(choice)
    elif choice not in (None, "auto", "none"):
        raise _refused("tool_choice", choice, "no tools are given. Send tools, or leave it out")
    out |= _text(body)
    if LOGPROBS in (body.include or []) or body.top_logprobs:
        out |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return out


def as_sent(resolved: Resolved, raw: Mapping[str, Any]) -> Resolved:
    """`resolved` with its budget's origin and notices in the words of the request `raw`."""

    def said(text: str) -> str:
        return _CHAT_NAME.sub(lambda found: found[0] if found[0] in raw else _NAMES[found[0]], text)

    by = resolved.budget_by
    if by is None:
        return resolved
    return replace(resolved, budget_by=said(by), notices=tuple(map(said, resolved.notices)))


def renamed(error: ApiError, raw: Mapping[str, Any]) -> ApiError:
    """An error about a chat request, in the words of the request `raw` to the Responses API."""
    param = error.param or ""
    head, _, rest = param.partition(".")
    if head == "messages":
        number, _, tail = rest.partition(".")
        name = "input" + (f" (as message {number})" if number else "") + (f".{tail}" if tail else "")
        return ApiError(
            error.status, str(error).replace(f"'{param}'", f"'{name}'"), param="input", code=error.code,
            headers=error.headers,
        )  # fmt: skip
    name = _NAMES.get(head, "")
    if not name or head in raw:
        return error
    text = str(error).replace(f"'{param}'", f"'{name}'")
    return ApiError(error.status, text, param=name, code=error.code, headers=error.headers)


def _refuse(body: ResponsesBody, raw: Mapping[str, Any]) -> None:
    if body.background:
        raise _refused("background", True, "nothing runs here without its client. Leave it out, or stream")
    for name, why in (
        ("conversation", "no conversations are kept here. Send previous_response_id, or all items"),
        ("prompt", "no prompt templates are kept here. Send instructions and input"),
        ("moderation", "nothing is moderated here. Leave it out"),
        ("context_management", "nothing is compacted here. Leave it out"),
    ):
        if raw.get(name) not in (None, []):
            raise _refused(name, raw[name], why)
    if body.truncation not in (None, "disabled"):
        raise _refused(
            "truncation", body.truncation, "no items are dropped here. Send 'disabled', or fewer items"
        )
    for asked in body.include or []:
        if asked not in _INCLUDES:
            raise _refused("include", asked, f"it is not known. Known: {', '.join(_INCLUDES)}")
    if raw.get("n") not in (None, 1):
        raise _refused("n", raw["n"], "a response has one choice. Leave it out")
    if (body.stream_options or {}).get("include_obfuscation"):
        raise _refused("stream_options", body.stream_options, "streams are not obfuscated here. Leave it out")


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise _refused(
                f"tools[{number}].type", tool.get("type"), "only tools of type function can be called here"
            )
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise _refused(f"tools[{number}].name", tool.get("name"), "a function needs a name")
        function = {name: value for name, value in tool.items() if name != "type" and value is not None}
        out.append({"type": "function", "function": function})
    return out


def _allowed(
    tools: list[dict[str, Any]], choice: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], str | Mapping[str, Any]]:
    """Only the tools that may be called, and how: the server behind knows no such choice."""
    listed = choice.get("tools")
    named = (
        [each.get("name") for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    )
    kept = [tool for tool in tools if tool["function"]["name"] in named]
    mode = choice.get("mode", "auto")
    if not kept or mode not in ("auto", "required"):
        raise _refused("tool_choice", dict(choice), "name some of `tools`, and mode 'auto' or 'required'")
    return kept, str(mode)


def _choice(choice: str | Mapping[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise _refused("tool_choice", choice, "send auto, none, required, or a function")
        return choice
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise _refused("tool_choice", dict(choice), "only a function can be chosen here")
    return {"type": "function", "function": {"name": choice["name"]}}


def _text(body: ResponsesBody) -> dict[str, Any]:
    text = body.text
    if text is None:
        return {}
    out: dict[str, Any] = {} if text.verbosity is None else {"verbosity": text.verbosity}
    form = text.format
    if form is None or form.type == "text":
        return out
    if form.type == "json_object":
        return out | {"response_format": {"type": "json_object"}}
    if form.schema_ is None or not form.name:
        raise _refused("text.format", form.type, "a json_schema needs a name and a schema")
    schema = {
        "name": form.name,
        "schema": form.schema_,
        "strict": form.strict,
        "description": form.description,
    }
    held = {name: value for name, value in schema.items() if value is not None}
    return out | {"response_format": {"type": "json_schema", "json_schema": held}}


def _refused(name: str, value: object, why: str) -> ApiError:
    return ApiError(400, f"'{name}' is {shorten(value)}: {why}.", param=name, code="not_offered")
