"""Finds budgets that nobody would read where they stand, and says where they belong.

A budget that is accepted and ignored is the worst of all answers, so a name that can only be a budget is
refused outside the places of the table. Knows names, not values. Everything else passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from desist.proxy.controls.aliases import ALIASES, CONTAINERS

__all__ = ["misplaced"]

_KNOWN = frozenset(alias.path for alias in ALIASES)
_LEAVES = {alias.path[-1]: alias.name for alias in reversed(ALIASES) if alias.kind == "budget"}
# Objects that clients put budgets into, where no server looks for them.
_CATCH_ALL = (
    "extra_body",
    "extra_args",
    "vllm_xargs",
    "sampling_params",
    "extra_options",
    "options",
    "generation_config",
    "generationConfig",
    "model_kwargs",
    "thinking_config",
    "extra",
)
_HOLDERS = frozenset({*CONTAINERS, *_CATCH_ALL, "desist"})  # ours too, where it stands inside another
_NAMED = re.compile(r"(?i)(?=.*(think|reason)).*(budget|tokens|limit|length)|budget_?tokens")
_INSIDE = re.compile(r"(?i)(token_?)?budget")  # at the top, and in an object of anybody's, it may be anything
_THOUGHTS = re.compile(r"(?i)(?!.*details).*(think|reason).*")  # an object that speaks of thinking
_LIMITS = re.compile(r"(?i)(max_?)?((output_?)?tokens|length)|max|limit|(token_?)?budget")
# Objects of others' words, in which any name means what its author wants.
_FREE = frozenset({
    "messages", "input", "prompt", "tools", "functions", "tool_choice", "function_call", "response_format",
    "text", "structured_outputs", "guided_json", "metadata", "logit_bias", "documents", "prediction", "audio",
    "stream_options", "usage", "json_schema", "schema",
})  # fmt: skip
_DEEPEST = 5
# What else is called a budget: llama.cpp's texts and tags around one, and what only reports.
_OTHERS = re.compile(r"(?i).*(message|tags?|sentence|details)")


def misplaced(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """(where a budget stands, where it belongs) for the first one without effect, or None."""
    for path, value in _fields(body):
        key = path[-1]
        if value is None or path in _KNOWN or _OTHERS.fullmatch(key):
            continue
        if key == "max_tokens" and not (len(path) > 1 and _THOUGHTS.fullmatch(path[-2])):
            continue  # the limit of the whole answer, except inside such an object
        if key in _LEAVES or (_counts(value) and _is_budget(path)):
            right = _LEAVES.get(key, "thinking_token_budget")
            return ".".join(path), right if right != ".".join(path) else "thinking_token_budget"
    return None


def _is_budget(path: tuple[str, ...]) -> bool:
    key, outer = path[-1], path[:-1]
    if _NAMED.fullmatch(key):
        return True
    if outer and _THOUGHTS.fullmatch(outer[-1]):
        return bool(_LIMITS.fullmatch(key))
    return bool(outer and outer[-1] in _HOLDERS and _INSIDE.fullmatch(key))


def _counts(value: object) -> bool:
    """Whether a value counts something: a switch of that name is no budget."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All fields of the body, and of the objects in it that may hold controls, by their paths."""
    objects: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), body)]
    for outer, held in objects:  # grows meanwhile
        for key, value in held.items():
            path = (*outer, str(key))
            yield path, value
            if (
                isinstance(value, Mapping)
                and len(path) < _DEEPEST
                and key not in _FREE
                and path != ("desist",)
            ):
                objects.append((path, value))
