"""The request that goes to vLLM: the client's own, with its control beside it.

Knows OpenAI's and vLLM's request fields. Changed are only: the fields that the proxy must own (see
`first_body`), `vllm_xargs` (ours are added), `return_token_ids`, and thinking budgets, which have become
the control's budget and must not be enforced twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from desist.controller import Control
from desist.controller.core import Mode
from desist.proxy.controls.onward import without_budgets
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.upstream.bodies import first_body
from desist.proxy.engines.vllm.params import PREFIX, to_xargs
from desist.proxy.errors import ApiError, shorten

__all__ = ["capped", "check_body", "is_bound", "is_controlled", "vllm_body", "wants_ids"]


def is_controlled(control: Control) -> bool:
    """Whether the plugin has anything to do for a request."""
    return control.mode != "off" or control.budget is not None


def capped(control: Control, cap: Mode) -> Control:
    """The control with its mode lowered to at most `cap`."""
    return control.lowered(cap)


def wants_ids(request: GenerationRequest) -> bool:
    """Whether the client itself asked for token ids."""
    return bool(request.body.get("return_token_ids"))


def is_bound(request: GenerationRequest) -> bool:
    """Whether a grammar rules the answer, as far as the request's fields tell."""
    return _grammar_field(request.body) is not None


def check_body(request: GenerationRequest) -> None:
    """Refuse what cannot work. Raises `ApiError` (400) naming the field."""
    given = request.body.get("vllm_xargs")
    ours = [name for name in given if str(name).startswith(PREFIX)] if isinstance(given, dict) else []
    if ours:
        raise ApiError(
            400,
            f"'vllm_xargs.{ours[0]}' is the proxy's own field. Send the field 'desist' instead.",
            param=f"vllm_xargs.{ours[0]}",
            code="invalid_value",
        )
    if given is not None and not isinstance(given, dict):
        raise ApiError(
            400,
            f"'vllm_xargs' is {shorten(given)}. Give an object, or leave it out.",
            param="vllm_xargs",
            code="invalid_value",
        )
    name = _grammar_field(request.body)
    if name is not None and request.control.answer == "extract" and is_controlled(request.control):
        raise ApiError(
            400,
            f"'{name}' makes a grammar write the answer, so that no answer form can be opened for it. Send "
            "desist.answer 'write', or drop the field.",
            param=name,
            code="not_offered",
        )


def vllm_body(
    request: GenerationRequest, key: str, *, followed: bool, min_answer_tokens: int
) -> dict[str, Any]:
    """The body for vLLM. `followed`: the plugin is told of the request, under `key`."""
    body = first_body(request, running_usage=False)
    if request.control.budget is not None:
        body = without_budgets(body)
    body["return_token_ids"] = True
    if followed:
        control = to_xargs(key, request.control, min_answer_tokens=min_answer_tokens)
        body["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), **control}
    return body


def _grammar_field(body: Mapping[str, Any]) -> str | None:
    """The field of a request by which a grammar rules the answer."""
    form = body.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        return "response_format"
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "tool_choice"
    return next(
        (
            name
            for name, value in body.items()
            if value is not None and (name == "structured_outputs" or name.startswith("guided_"))
        ),
        None,
    )
