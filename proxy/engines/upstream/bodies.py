"""The request bodies that go upstream: the client's own, changed only where it must be, and its continuation.

Knows OpenAI's request fields and how a stopped generation is continued: chat with a last assistant message
to be continued, text completions with a longer prompt. Does not talk to anyone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from desist.controller.profile import ModelProfile
from desist.controller.profiles import get_profile
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.settings import UpstreamSettings

__all__ = ["continued_body", "estimated_tokens", "first_body", "path_of", "profile_of", "split_handoff"]

_LIMITS = ("max_tokens", "max_completion_tokens")
_OTHER_BUDGETS = ("thinking_token_budget", "thinking_budget", "thinking")


def path_of(request: GenerationRequest) -> str:
    return "/chat/completions" if request.messages is not None else "/completions"


def profile_of(settings: UpstreamSettings) -> ModelProfile:
    """The model's profile with the tags of the settings. Raises `ControlError` for an unknown name."""
    base = get_profile(settings.profile or "qwen3")
    return replace(
        base,
        think_open=settings.think_open,
        think_close=settings.think_close,
        handoff_write=base.handoff_write.replace(base.think_close, settings.think_close),
        handoff_extract=base.handoff_extract.replace(base.think_close, settings.think_close),
    )


def split_handoff(profile: ModelProfile, request: GenerationRequest) -> tuple[str, str]:
    """The hand-off's text before the close tag (reasoning), and after it (the opened answer)."""
    before, _, after = profile.handoff(request.control.answer).partition(profile.think_close)
    return before.rstrip(), after.lstrip()


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


def continued_body(
    request: GenerationRequest, profile: ModelProfile, kept: str, used_tokens: int, *, opened: bool
) -> dict[str, Any]:
    """The body of the second call: thinking closed after `kept`, the answer to be written.

    `used_tokens` were generated before and are taken off the limit. `opened`: a text prompt has opened the
    thinking block itself.
    """
    body = first_body(request, running_usage=False)
    for name in _OTHER_BUDGETS:  # the closing text must not be written twice
        body.pop(name, None)
    for name in _LIMITS:
        if isinstance(body.get(name), int):
            body[name] = max(1, body[name] - used_tokens)
    handoff = profile.handoff(request.control.answer)
    handoff = handoff.lstrip(" ") if not kept or kept[-1].isspace() else handoff
    text = ("" if opened else profile.think_open + "\n") + kept + handoff
    if request.messages is None:
        return body | {"prompt": str(request.prompt) + text}
    messages = [*body["messages"], {"role": "assistant", "content": text}]
    return body | {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}


def estimated_tokens(text: str, chars_per_token: float) -> int:
    """Tokens of a text whose server does not count them for us."""
    return math.ceil(len(text) / chars_per_token)
