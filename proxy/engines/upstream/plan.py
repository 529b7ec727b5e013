"""What may be done with one request: whether its thinking can be cut, how it goes on, which budget holds.

Knows request fields and what the server was seen to do. Decides before the first call, so that nothing is cut
that cannot be continued with the client's tools, schema, images and sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from desist.controller.profile import ModelProfile
from desist.proxy.controls.aliases import ALIASES, dig
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.upstream.capabilities import Capabilities

__all__ = ["BUDGET_PATHS", "Plan", "grammar_field", "make_plan", "native_budgets", "parses_calls"]

#: Where a request may hold a budget that some server enforces by itself.
BUDGET_PATHS = tuple(alias.path for alias in ALIASES if alias.kind == "budget")
_READ = {alias.path: alias.read for alias in ALIASES if alias.kind == "budget"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One request's way.

    `ids`: a cut may go on from token ids; `message`: as a last assistant message of a chat; `text`: as a
    longer
    text prompt. `proven`: the server was seen to keep such a message. `native`: the field by which the server
    is asked to close thinking itself. `budget`: the smallest budget of all that were given. `why`: why
    thinking cannot be cut; None: it can. `known`: the server was examined. `parses`: it takes thinking out
    of a chat's content itself. `offset`: see `Capabilities.native_offset`. `opens`: the
    chat template opens thinking, and the server does not parse it.
    """

    ids: bool
    message: bool
    text: bool
    proven: bool
    known: bool
    native: tuple[str, ...] | None
    budget: int | None
    why: str | None
    parses: bool = False
    offset: int = 0
    opens: bool = False

    @property
    def can_cut(self) -> bool:
        return self.ids or self.message or self.text


def make_plan(request: GenerationRequest, profile: ModelProfile, capabilities: Capabilities | None) -> Plan:
    """The plan for a request to a server with these capabilities (None: it was not examined, or not yet)."""
    body, known = request.body, capabilities
    given = [value for value in native_budgets(body).values() if value is not None]
    if request.control.budget is not None:
        given.append(request.control.budget)
    native = tuple(known.native_budget.split(".")) if known is not None and known.native_budget else None
    chat = request.messages is not None
    ids = known is None or (known.token_ids and known.prompt_continuation)
    message = chat and (known is None or known.final_message)
    text = not chat and isinstance(request.prompt, str)
    bound = bool(_tools(body)) or grammar_field(body) is not None
    if chat and known is not None and not ids and not message and not bound:
        message = True  # nothing better is there, and nothing but the text itself could be lost
    why = None
    if known is not None and not ids and not message and not text:
        why = "the server gives no token ids and keeps no continued message, so that what binds the answer "
        why += "(tools, a schema) would be lost"
    if ids and chat and (lost := _not_in_ids(request, profile)) is not None:
        ids = False
        why = None if message else f"{lost} cannot be carried over to a continuation from token ids"
    if (never := _never(request)) is not None:
        ids = message = text = False
        why = never
    proven = message and known is not None and known.final_message
    budget = min(given, default=None)
    parses = known is not None and known.parses_reasoning
    return Plan(
        ids,
        message,
        text,
        proven,
        known is not None,
        native,
        budget,
        why,
        parses,
        known.native_offset if known else 0,
        bool(known is not None and known.template_opens and not parses),
    )


def native_budgets(body: Mapping[str, Any]) -> dict[tuple[str, ...], int | None]:
    """The budgets that a request names itself, by their paths; None: said, but no limit."""
    found: dict[tuple[str, ...], int | None] = {}
    for path in BUDGET_PATHS:
        value = dig(body, path)
        if value is None:
            continue
        try:
            limit = _READ[path](value)
        except ValueError:
            continue  # the server's to refuse
        found[path] = limit if isinstance(limit, int) and limit >= 0 else None
    return found


def parses_calls(profile: ModelProfile) -> bool:
    """Whether tool calls of this model's own markup can be read here (Qwen's and Hermes')."""
    return profile.tool_call_open == "<tool_call>" and profile.tool_call_form == "markup"


def grammar_field(body: Mapping[str, Any]) -> str | None:
    """The field of a request by which a grammar rules the answer."""
    form = body.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        return "response_format"
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "tool_choice"
    names = (name for name in body if name == "structured_outputs" or name.startswith("guided_"))
    return next((name for name in names if body[name] is not None), None)


def _tools(body: Mapping[str, Any]) -> bool:
    return bool(body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none"


def _never(request: GenerationRequest) -> str | None:
    """What makes any cut impossible."""
    body = request.body
    if body.get("include_reasoning") is False:
        return "include_reasoning is false: the server shows no thinking that could be cut"
    if body.get("use_beam_search"):
        return "beam search cannot be cut"
    if body.get("echo"):
        return "an echoed prompt cannot be told from what is generated"
    name = grammar_field(body)
    if name is not None and request.control.answer == "extract":
        return f"'{name}' makes a grammar write the answer, so that no answer form can be opened for it"
    if request.messages is None and body.get("suffix"):
        return "a suffix cannot be carried over"
    return None


def _not_in_ids(request: GenerationRequest, profile: ModelProfile) -> str | None:
    """What a chat request has that a prompt of token ids cannot hold, or whose answer is not read here."""
    for message in request.messages or ():
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            kind = part.get("type", "text") if isinstance(part, dict) else "text"
            if kind not in ("text", "input_text", "refusal"):
                return f"a message part of type '{kind}'"
    body = request.body
    if body.get("functions"):
        return "'functions'"
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "a tool_choice that makes a call necessary"
    if _tools(body) and not parses_calls(profile):
        return f"'tools' (calls of profile '{profile.name}' are read by the server only)"
    if profile.style != "tags" and _tools(body):
        return "'tools'"
    return None
