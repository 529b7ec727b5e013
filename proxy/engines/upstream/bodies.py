"""The request bodies that go upstream: the client's own, changed only where it must be, and its continuation.

Knows OpenAI's request fields and how a stopped generation is continued: a text completion with a longer
prompt, as ids or as text, or a chat whose last assistant message is to be continued. Does not talk to anyone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from desist.controller.model_names import profile_for
from desist.controller.profile import ModelProfile
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.upstream.plan import BUDGET_PATHS, Plan
from desist.proxy.settings import UpstreamSettings

__all__ = [
    "Continued",
    "estimated_tokens",
    "first_body",
    "handoff_after",
    "ids_body",
    "message_body",
    "opening_body",
    "path_of",
    "profile_of",
    "split_handoff",
    "text_body",
]

_LIMITS = ("max_tokens", "max_completion_tokens")
# Fields of a chat that a text completion with a rendered prompt has no use for, or means otherwise.
_CHAT_ONLY = frozenset({
    "messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "chat_template",
    "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "reasoning_effort",
    "reasoning",
    "include_reasoning", "documents", "media_io_kwargs", "mm_processor_kwargs", "modalities", "audio",
    "prediction", "store", "metadata", "service_tier", "verbosity", "web_search_options", "echo",
    "max_completion_tokens", "top_logprobs", "logprobs", "return_prompt_text", "separate_reasoning",
    "stream_reasoning", "reasoning_format", "truncate_prompt_tokens", "truncation_side",
    "return_token_offsets", "thinking", "enable_thinking", "think",
})  # fmt: skip


def path_of(request: GenerationRequest) -> str:
    return "/chat/completions" if request.messages is not None else "/completions"


def profile_of(settings: UpstreamSettings, model: str = "") -> ModelProfile:
    """The profile of a model with the tags of the settings. Raises `ControlError` for an unknown name."""
    chosen = profile_for(model, settings.profile).profile
    tags = {"think_open": settings.think_open, "think_close": settings.think_close}
    given = {name: tag for name, tag in tags.items() if name in settings.model_fields_set}
    return chosen.with_tags(given.get("think_open"), given.get("think_close"))


def split_handoff(profile: ModelProfile, request: GenerationRequest) -> tuple[str, str]:
    """The hand-off's text before the close tag (reasoning), and after it (the opened answer)."""
    before = profile.handoff(request.control.answer).partition(profile.think_close)[0]
    return before.rstrip(), profile.answer_opening(request.control.answer)


def handoff_after(profile: ModelProfile, request: GenerationRequest, kept: str) -> str:
    """The hand-off as it stands after the kept reasoning: no second space."""
    handoff = profile.handoff(request.control.answer)
    return handoff.lstrip(" ") if not kept or kept[-1].isspace() else handoff


def first_body(request: GenerationRequest, *, running_usage: bool) -> dict[str, Any]:
    """The body of the first call. max_tokens is never raised, unknown fields are kept."""
    body = dict(request.body) if request.body else _from_fields(request)
    for ours in ("desist", "n", "best_of"):
        body.pop(ours, None)
    body["model"] = request.model
    if request.messages is None:
        body["prompt"] = list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt
    if request.sampling.seed is not None:
        body["seed"] = request.sampling.seed
    options = dict(body.get("stream_options") or {}) | {"include_usage": True}
    if running_usage:
        options["continuous_usage_stats"] = True
    return body | {"stream": True, "stream_options": options}


def opening_body(
    request: GenerationRequest,
    plan: Plan,
    *,
    budget: int | None,
    watched: bool,
    running_usage: bool,
    ids: bool,
) -> dict[str, Any]:
    """The body of a first call under a plan. `budget`: what the server is to enforce (None: nothing).

    `watched`: thinking is cut here if need be; a budget that the server was seen to ignore is then no use to
    it. Fields of the chat template are the template's. `ids`: token ids are asked for.
    """
    body = first_body(request, running_usage=running_usage)
    if budget is not None and plan.native is not None:
        _drop(body, BUDGET_PATHS)
        _set(body, plan.native, budget)
    elif plan.known and watched:
        _drop(body, BUDGET_PATHS)
    if ids:
        body["return_token_ids"] = True
    return body


def _drop(body: dict[str, Any], paths: Sequence[tuple[str, ...]]) -> None:
    for path in paths:
        if path[0] == "chat_template_kwargs":
            continue
        if len(path) == 1:
            body.pop(path[0], None)
        elif isinstance(inner := body.get(path[0]), dict) and path[1] in inner:
            body[path[0]] = {name: value for name, value in inner.items() if name != path[1]}


def _set(body: dict[str, Any], path: tuple[str, ...], value: int) -> None:
    if len(path) == 1:
        body[path[0]] = value
    else:
        inner = body.get(path[0])
        body[path[0]] = {**(inner if isinstance(inner, dict) else {}), path[1]: value}


def _from_fields(request: GenerationRequest) -> dict[str, Any]:
    """For callers that have no HTTP body."""
    sampling = request.sampling
    body: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p, **request.extra}
    if request.messages is not None:
        body["messages"] = list(request.messages)
    if sampling.max_tokens is not None:
        body["max_tokens"] = sampling.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    if request.top_k is not None:
        body["top_k"] = request.top_k
    if request.template:
        body["chat_template_kwargs"] = dict(request.template)
    return body


@dataclass(frozen=True, slots=True)
class Continued:
    """What the first call leaves to the second: the reasoning kept, and all tokens that are spent."""

    kept: str
    used_tokens: int


def _remaining(request: GenerationRequest, left: Continued) -> dict[str, Any]:
    """The first body with limits lowered by what was used; never below 1, never raised."""
    body = first_body(request, running_usage=False)
    _drop(body, BUDGET_PATHS)
    for name in _LIMITS:
        if _counts(body.get(name)):
            body[name] = max(1, body[name] - left.used_tokens)
    if _counts(body.get("min_tokens")):
        body["min_tokens"] = max(0, body["min_tokens"] - left.used_tokens)
    return body


def ids_body(request: GenerationRequest, left: Continued, prompt: Sequence[int]) -> dict[str, Any]:
    """The second call as a text completion from token ids: what was read and kept, and the hand-off."""
    body = _remaining(request, left)
    if request.messages is not None:
        limits = [body[name] for name in _LIMITS if _counts(body.get(name))]
        top = body.get("top_logprobs")
        logprobs = (top if _counts(top) else 0) if body.get("logprobs") is True else None
        body = {name: value for name, value in body.items() if name not in _CHAT_ONLY}
        body["max_tokens"] = min(
            limits, default=None
        )  # none given: a text completion has a default of its own
        if logprobs is not None:
            body["logprobs"] = logprobs
    for name in ("truncate_prompt_tokens", "truncation_side"):
        body.pop(name, None)
    least = max(1, body.get("min_tokens") or 0)  # an answer that ends before it begins is none
    return body | {"prompt": list(prompt), "min_tokens": least, "return_token_ids": True}


def message_body(request: GenerationRequest, profile: ModelProfile, left: Continued) -> dict[str, Any]:
    """The second call as a chat whose last assistant message is continued."""
    body = _remaining(request, left)
    text = profile.think_open + "\n" + left.kept + handoff_after(profile, request, left.kept)
    messages = [*body["messages"], {"role": "assistant", "content": text}]
    return body | {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}


def text_body(
    request: GenerationRequest, profile: ModelProfile, left: Continued, *, opened: bool
) -> dict[str, Any]:
    """The second call as a longer text prompt. `opened`: the prompt has opened the thinking block itself."""
    opening = "" if opened else profile.think_open + "\n"
    text = f"{request.prompt}{opening}{left.kept}{handoff_after(profile, request, left.kept)}"
    return _remaining(request, left) | {"prompt": text}


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def estimated_tokens(text: str, chars_per_token: float) -> int:
    """Tokens of a text whose server does not count them for us."""
    return math.ceil(len(text) / chars_per_token)
