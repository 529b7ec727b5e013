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
_NAMED = re.compile(r"(?i)(?=.*(think|reason)).*(budget|tokens|limit)|budget_?tokens")
_INSIDE = re.compile(r"(?i)(token_?)?budget")  # at the top it may be anybody's
# What else is called a budget: llama.cpp's texts and tags around one, and what only reports.
_OTHERS = re.compile(r"(?i).*(message|tags?|sentence|details)")


def misplaced(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """(where a budget stands, where it belongs) for the first one without effect, or None."""
    for path, value in _fields(body):
        key = path[-1]
        if value is None or path in _KNOWN or _OTHERS.fullmatch(key):
            continue
        if key == "max_tokens" and path[-2:-1] not in (("reasoning",), ("thinking",)):
            continue  # the limit of the whole answer, except inside such an object
        if key in _LEAVES or (_counts(value) and _is_budget(path)):
            right = _LEAVES.get(key, "thinking_token_budget")
            return ".".join(path), right if right != ".".join(path) else "thinking_token_budget"
    return None


def _is_budget(path: tuple[str, ...]) -> bool:
    return bool(_NAMED.fullmatch(path[-1]) or (len(path) > 1 and _INSIDE.fullmatch(path[-1])))


def _counts(value: object) -> bool:
    """Whether a value counts something: a switch of that name is no budget."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields at the top of the body and in the objects that may hold controls, by their paths."""
    for key, value in body.items():
        yield (str(key),), value
    for outer in dict.fromkeys((*CONTAINERS, *_CATCH_ALL)):
        held = body.get(outer)
        for key, value in held.items() if isinstance(held, Mapping) else ():
            yield (outer, str(key)), value
            if isinstance(value, Mapping):
                yield from (((outer, str(key), str(name)), each) for name, each in value.items())
