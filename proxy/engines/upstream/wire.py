"""What an OpenAI-compatible server says, read without loss.

Knows chat and text completion objects, streamed and whole, in the dialects in use (`reasoning` and
`reasoning_content`, token ids, running usage). Fields that it does not know are kept for the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from desist.data.errors import UpstreamError
from desist.proxy.engines.upstream.content_parts import as_texts

__all__ = ["Chunk", "read_chunk", "read_whole"]

_decode = msgspec.json.Decoder().decode
_OURS = frozenset({"id", "object", "created", "model", "choices", "usage", "error"})
_CHOICE = frozenset({"index", "delta", "message", "text", "finish_reason", "token_ids", "prompt_token_ids"})
_DELTA = frozenset({"role", "content", "reasoning", "reasoning_content"})
_BROKEN = ("error", "abort")  # finish reasons of an answer that is not whole


class Chunk(msgspec.Struct, frozen=True):  # made once a token: a dataclass takes five times as long
    """One event of the upstream stream, for its only choice. `usage` is the newest count, if it has one.

    `prompt_ids`: the prompt's token ids, where the server was asked for them (in the first event only).
    """

    reasoning: str = ""
    content: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    delta_extra: Mapping[str, Any] = {}  # each chunk gets its own
    choice_extra: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}


def read_chunk(data: bytes) -> Chunk:
    """Read one streamed object. Raises `UpstreamError` for an error event or anything that is no object."""
    body = _object(data)
    choice = _choice(body)
    return _chunk(body, choice, choice.get("delta"))


def read_whole(data: bytes) -> Chunk:
    """Read a complete response, from a server that does not stream."""
    body = _object(data)
    choice = _choice(body)
    return _chunk(body, choice, _with_places(choice.get("message")))


def _with_places(message: Any) -> Any:
    """The message, its tool calls numbered as streamed ones are: a client that streams asks for it."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    placed = [{"index": n, **call} if isinstance(call, dict) else call for n, call in enumerate(calls)]
    return {**message, "tool_calls": placed}


def _object(data: bytes) -> dict[str, Any]:
    try:
        body = _decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamError(
            f"the upstream sent something that is not JSON ({error}). Check that the URL points at an "
            "OpenAI-compatible server.",
            502,
        ) from error
    if not isinstance(body, dict):
        raise UpstreamError("the upstream sent JSON that is no object. Check the upstream URL.", 502)
    if body.get("error"):
        raise _told(body["error"])
    if body.get("object") == "error":  # vLLM's older shape
        raise _told(body)
    if "choices" not in body and (body.get("message") or body.get("detail")):  # an error without its frame
        raise _told({"message": body.get("message") or body["detail"], **body})
    return body


def _told(error: Any) -> UpstreamError:
    message = error.get("message") if isinstance(error, dict) else error
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return UpstreamError(
        f"the upstream failed in the middle of its answer: {message or 'no reason given'}", status
    )


def _choice(body: Mapping[str, Any]) -> dict[str, Any]:
    """The only choice that was asked for. A server that sends others besides is not let mix them in."""
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and not choice.get("index"):
            if choice.get("error"):
                raise _told(choice["error"])
            if choice.get("finish_reason") in _BROKEN:
                raise _told(f"its finish_reason is '{choice['finish_reason']}'")
            return choice
    return {}


def _chunk(body: Mapping[str, Any], choice: Mapping[str, Any], delta: Any) -> Chunk:
    delta = delta if isinstance(delta, dict) else {}
    ids = choice.get("token_ids")
    prompt = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
    usage = body.get("usage")
    finish = choice.get("finish_reason")
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    content = delta.get("content") or choice.get("text") or ""
    if type(content) is not str or type(reasoning) is not str:
        reasoning, content = as_texts(reasoning, content)
    return Chunk(
        reasoning=reasoning,
        content=content,
        finish_reason=finish if isinstance(finish, str) else None,
        usage=usage if isinstance(usage, dict) else None,
        token_ids=tuple(ids) if isinstance(ids, list) else (),
        prompt_ids=tuple(prompt) if isinstance(prompt, list) else (),
        delta_extra=_rest(delta, _DELTA),
        choice_extra=_rest(choice, _CHOICE),
        extra=_rest(body, _OURS),
    )


def _rest(found: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    rest = {}
    for key in found:
        if key not in known and (value := found[key]) is not None:
            rest[key] = value
    return rest
