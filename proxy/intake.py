"""From an HTTP request to generation requests: limits, JSON, validation, what the engine cannot honour.

Knows the bodies of both completion routes. Does not generate. Nothing that changes an answer is ignored in
silence: what an engine cannot do is refused, except where the field asks for nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import Request
from pydantic import ValidationError

from desist.data.schema import Message, Sampling
from desist.proxy.control import Resolved
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.errors import ApiError, shorten, validation_error
from desist.proxy.headers import MODE_HEADER, forwarded
from desist.proxy.schemas import ChatBody, CommonBody, CompletionBody
from desist.proxy.state import ProxyState

__all__ = ["Intake", "authorize", "read_json", "take_chat", "take_completion"]

B = TypeVar("B", bound=CommonBody)
_NOT_EXTRA = frozenset(ChatBody.model_fields) | frozenset(CompletionBody.model_fields)
# Fields that change the answer, and the values by which they ask for nothing.
_IDLE: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "audio": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "structured_outputs": (None,),
}


@dataclass(frozen=True, slots=True)
class Intake(Generic[B]):
    """One accepted request: its body, its control and one generation request per choice, in index order."""

    body: B
    raw: dict[str, Any]
    model: str
    resolved: Resolved
    choices: tuple[GenerationRequest, ...]
    choices_per_prompt: int

    @property
    def include_usage(self) -> bool:
        options = self.body.stream_options
        return bool(options and options.include_usage)


def authorize(request: Request, state: ProxyState) -> None:
    """Check the bearer key where the proxy asks for one. Raises `ApiError` 401."""
    keys = state.settings.api_keys
    if not keys:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    known = [secrets.compare_digest(given.strip().encode(), key.get_secret_value().encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(known):
        raise ApiError(
            401,
            "this server asks for an API key and the one given is missing or unknown. Send the header "
            "'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def read_json(request: Request, limit_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises `ApiError` 413 or 400."""
    too_large = ApiError(
        413,
        f"the request body is larger than {limit_bytes} bytes. Send less, or raise limits.max_body_bytes.",
        code="body_too_large",
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit_bytes:
            raise too_large
    try:
        value = msgspec.json.decode(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(
            400, f"the request body is not valid JSON: {what}. Send one JSON object.", code="invalid_json"
        ) from error
    if not isinstance(value, dict):
        raise ApiError(
            400,
            f"the request body is {shorten(value)}, not a JSON object. Send one JSON object.",
            code="invalid_json",
        )
    return value


async def take_chat(request: Request, state: ProxyState) -> Intake[ChatBody]:
    """Accept POST /v1/chat/completions. Raises `ApiError`."""
    raw = await _read(request, state)
    body = _validate(ChatBody, raw)
    messages: list[Message] = raw["messages"]
    if not state.passes_through:
        messages = [_as_text(message, index) for index, message in enumerate(messages)]
    n = body.n or 1
    return await _accept(request, state, body, raw, n, [{"messages": tuple(messages)}])


async def take_completion(request: Request, state: ProxyState) -> Intake[CompletionBody]:
    """Accept POST /v1/completions. Raises `ApiError`."""
    raw = await _read(request, state)
    body = _validate(CompletionBody, raw)
    return await _accept(
        request, state, body, raw, body.n or 1, [{"prompt": prompt} for prompt in body.prompt]
    )


async def _read(request: Request, state: ProxyState) -> dict[str, Any]:
    authorize(request, state)
    return await read_json(request, state.settings.limits.max_body_bytes)


def _validate(kind: type[B], raw: dict[str, Any]) -> B:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise validation_error(error) from error


async def _accept(
    request: Request, state: ProxyState, body: B, raw: dict[str, Any], n: int, sources: list[dict[str, Any]]
) -> Intake[B]:
    limit = state.settings.limits.max_choices
    if n * len(sources) > limit:
        raise ApiError(
            400,
            f"the request asks for {n * len(sources)} choices (n times prompts), the limit is {limit}. Ask "
            "for fewer, or raise limits.max_choices.",
            param="n",
            code="invalid_value",
        )
    if not state.passes_through:
        _refuse_unhonoured(raw)
    model = await _model(state, body.model)
    sampling = _sampling(state, body)
    resolved = state.resolver.resolve(body, sampling, request.headers.get(MODE_HEADER))
    if state.watch is not None:
        resolved = state.watch.capped(resolved)
    identity = request.scope["desist.request_id"]
    headers = forwarded(request.headers, identity, authorization=not state.settings.api_keys)
    extra = {key: value for key, value in raw.items() if key not in _NOT_EXTRA}
    choices = tuple(
        GenerationRequest(
            request_id=f"{identity}/{index}",
            model=model,
            sampling=_nth(sampling, index),
            control=resolved.control,
            stop=body.stop,
            top_k=body.top_k if body.top_k and body.top_k > 0 else None,
            template=body.chat_template_kwargs or {},
            extra=extra,
            body=raw,
            headers=headers,
            **sources[index // n],
        )
        for index in range(n * len(sources))
    )
    return Intake(body, raw, model, resolved, choices, n)


def _nth(sampling: Sampling, index: int) -> Sampling:
    """Choices of one seeded request get seeds of their own, or they would all be equal."""
    if sampling.seed is None or index == 0:
        return sampling
    seed = sampling.seed + index
    return Sampling(sampling.temperature, sampling.top_p, seed, sampling.max_tokens)


def _sampling(state: ProxyState, body: CommonBody) -> Sampling:
    defaults = state.sampling
    limit = body.limit if isinstance(body, (ChatBody, CompletionBody)) else None
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        seed=body.seed,
        max_tokens=defaults.max_tokens if limit is None and not state.passes_through else limit,
    )


async def _model(state: ProxyState, asked: str | None) -> str:
    if asked is not None and state.passes_through:
        return asked  # the server behind knows its names, aliases and adapters
    served = [card.model_id for card in await state.engine.models()]
    if asked is None and served:
        return served[0]
    if asked in served:
        return str(asked)
    raise ApiError(
        404,
        f"'model' is {shorten(asked)}, which is not served here. Served: {', '.join(served) or 'nothing'}.",
        param="model",
        code="model_not_found",
    )


def _refuse_unhonoured(raw: Mapping[str, Any]) -> None:
    for key, idle in _IDLE.items():
        value = raw.get(key)
        if any(value == nothing and isinstance(value, bool) == isinstance(nothing, bool) for nothing in idle):
            continue
        raise ApiError(
            400,
            f"'{key}' is {shorten(value)}: this engine cannot honour it. Leave it out, or serve the model "
            "with vLLM and put desist before it (--upstream URL).",
            param=key,
            code="not_offered",
        )


def _as_text(message: Message, index: int) -> Message:
    """The message with text parts joined, for engines that read texts only."""
    content = message.get("content")
    if not isinstance(content, list):
        return message if content is not None else {**message, "content": ""}
    for part in content:
        if part.get("type", "text") not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise ApiError(
                400,
                f"'messages.{index}.content' has a part of type {shorten(part.get('type'))}: this engine "
                "reads text only. Send text parts.",
                param=f"messages.{index}.content",
                code="not_offered",
            )
    return {**message, "content": "".join(part["text"] for part in content)}
