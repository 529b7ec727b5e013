"""From an HTTP request to generation requests: limits, JSON, validation, what the engine cannot honour.

Knows the bodies of both completion routes. Does not generate. Nothing that changes an answer is ignored in
silence: what an engine cannot do is refused, except where the field asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import Request
from pydantic import ValidationError

from desist.data.schema import Message, Sampling
from desist.proxy.access.middleware import tenant_of
from desist.proxy.access.tenants import EVERYONE, Tenant
from desist.proxy.control import Resolved
from desist.proxy.controls.aliases import ALIASES
from desist.proxy.controls.onward import onward
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.errors import ApiError, shorten, validation_error
from desist.proxy.intake.body import read_body
from desist.proxy.intake.headers import forwarded
from desist.proxy.intake.history import read_reasoning, translated
from desist.proxy.intake.honoured import as_text, refuse_unhonoured
from desist.proxy.intake.schemas import ChatBody, CommonBody, CompletionBody
from desist.proxy.live.blocks import canonical
from desist.proxy.state import ProxyState

__all__ = ["Intake", "read_json", "take_chat", "take_completion"]

B = TypeVar("B", bound=CommonBody)
_NOT_EXTRA = (
    frozenset(ChatBody.model_fields)
    | frozenset(CompletionBody.model_fields)
    | frozenset(alias.path[0] for alias in ALIASES)
)

# Efforts that servers tell to the chat template.
_OBEYED = ("reasoning_effort", "chat_template_kwargs.reasoning_effort")


@dataclass(frozen=True, slots=True)
class Intake(Generic[B]):
    """One accepted request: its body, its control and one generation request per choice, in index order."""

    body: B
    raw: dict[str, Any]
    model: str
    resolved: Resolved
    choices: tuple[GenerationRequest, ...]
    choices_per_prompt: int
    tenant: Tenant = EVERYONE

    @property
    def include_usage(self) -> bool:
        options = self.body.stream_options
        return bool(options and options.include_usage)


async def read_json(request: Request, limit_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises `ApiError` 413 or 400."""
    data = await read_body(request, limit_bytes)
    try:
        value = msgspec.json.decode(data)
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


async def take_chat(
    request: Request, state: ProxyState, raw: dict[str, Any] | None = None
) -> Intake[ChatBody]:
    """Accept POST /v1/chat/completions, or a body that another route has made for it. Raises `ApiError`."""
    raw = await _read(request, state) if raw is None else raw
    body = _validate(ChatBody, raw)
    messages: list[Message] = raw["messages"]
    if not state.passes_through:
        messages = [as_text(message, index) for index, message in enumerate(messages)]
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
        refuse_unhonoured(raw)
    model = await _model(state, body.model)
    sampling = _sampling(state, body)
    tenant = tenant_of(request)
    resolver, defaults = state.control_for(model)
    resolved = resolver.resolve(
        raw,
        body.desist.said() if body.desist else {},
        request.headers,
        sampling,
        tenant=tenant,
        defaults=defaults,
        passes_through=state.passes_through,
        cap=state.switch.cap,
    )
    if state.watch is not None:
        resolved = state.watch.capped(resolved, tenant)
    identity = request.scope["desist.request_id"]
    name = state.running.name_for(identity, state.new_id)
    headers = forwarded(request.headers, identity, authorization=state.forwards_authorization)
    extra = {key: value for key, value in raw.items() if key not in _NOT_EXTRA}
    efforts = defaults.forward_efforts
    sent = onward(raw, efforts, shown_here=resolved.reasoning_format is not None)
    if state.passes_through and isinstance(body, ChatBody):
        sent["messages"] = _history(state, model, raw["messages"])
        sources = [{"messages": tuple(sent["messages"])}]
    choices = tuple(
        GenerationRequest(
            request_id=f"{name}/{index}",
            model=model,
            sampling=_nth(sampling, index),
            control=resolved.control,
            stop=body.stop,
            top_k=body.top_k if body.top_k and body.top_k > 0 else None,
            template=_template(state, raw, resolved),
            extra=extra,
            body=sent,
            headers=headers,
            **sources[index // n],
        )
        for index in range(n * len(sources))
    )
    return Intake(body, raw, model, resolved, choices, n, tenant)


def _template(state: ProxyState, raw: Mapping[str, Any], resolved: Resolved) -> dict[str, Any]:
    """What the chat template is told. An engine of our own obeys every switch; a server reads them itself.

    Templates call the switch by either of two names, and pass the other one over.
    """
    given = dict(raw.get("chat_template_kwargs") or {})
    asked = resolved.asked
    named = next((effort.value for effort in asked.efforts), None)
    if asked.thinking is not None:
        return given  # told to the template already
    if state.passes_through:  # elsewhere servers pass an effort over: it is a budget of 0, kept here
        off = any(effort.value == "none" and effort.by in _OBEYED for effort in asked.efforts)
    else:
        off = named == "none" or asked.off is not None
    if off:  # vLLM and SGLang make the same of an effort of none
        return given | {"enable_thinking": False, "thinking": False}
    if state.passes_through:
        return given
    if asked.switches:
        given |= {"enable_thinking": True, "thinking": True}
    return given if named is None else {"reasoning_effort": named, **given}


def _history(state: ProxyState, model: str, messages: list[Message]) -> list[Message]:
    """The messages, earlier thinking under the name that the server behind reads, where that is known."""
    told = getattr(state.engine, "history_field", None)
    thought = any(read_reasoning(each) is not None for each in messages)
    return translated(messages, told(model) if told is not None and thought else None)


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
    asked = None if asked is None else canonical(state.settings, asked)
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
