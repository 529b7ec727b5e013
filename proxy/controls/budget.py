"""Chooses the one budget of a request and says where it comes from.

A number outranks the name of an effort, a name outranks the server's default. Among numbers ours (the
`desist` object, else the header) stands beside those of the ecosystem's fields: the smallest holds, since
each of them is somebody's limit. Knows what was asked, the settings and a tenant's ceiling.
Does not stop anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from desist.controller.core import Mode
from desist.controller.machine import answer_reserve
from desist.proxy.access.tenants import Tenant
from desist.proxy.controls.asked import Asked, Said
from desist.proxy.controls.values import NO_LIMIT
from desist.proxy.errors import ApiError, shorten

__all__ = ["BudgetChoice", "choose_budget"]


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """`budget`: reasoning tokens (None: no limit). `by`: the field, header or setting behind it.

    `notices`: what the client should know, one sentence each.
    """

    budget: int | None = None
    by: str | None = None
    notices: tuple[str, ...] = ()


def choose_budget(
    asked: Asked,
    *,
    mode: Mode,
    default: int | None,
    efforts: Mapping[str, int | None],
    tenant: Tenant,
    max_tokens: int | None,
    min_answer_tokens: int,
) -> BudgetChoice:
    """The budget of a request in `mode`. `efforts`: names and their budgets; none: names are left alone.

    What the server's settings say, a default or an effort's size, is part of what "active" means; the
    client's own numbers hold in every mode, and so does a tenant's ceiling. Raises `ApiError` 400 for an
    unknown effort, 403 for a number above the ceiling.
    """
    named = _by_effort(asked, efforts)
    numbers = _numbers(asked)
    if numbers:
        choice = _smallest(numbers)
        _check_ceiling(choice, tenant)
    elif mode == "active" and named is not None:
        choice = named
    elif mode == "active" and default is not None:
        choice = BudgetChoice(default, "control.budget")
    else:
        choice = BudgetChoice()
    if tenant.budget is not None and not tenant.allows_budget(choice.budget):
        choice = replace(choice, budget=tenant.budget, by="tenant")
    return _clamped(choice, max_tokens, min_answer_tokens)


def _numbers(asked: Asked) -> list[Said[int]]:
    ours = [asked.own_budget] if asked.own_budget is not None else []
    switched_off = [Said(0, switch.by) for switch in asked.switches if not switch.value]
    return [*ours, *asked.budgets, *switched_off]


def _smallest(numbers: Sequence[Said[int]]) -> BudgetChoice:
    """The smallest; among equals the first, which is ours."""
    limits = [said for said in numbers if said.value != NO_LIMIT]
    if not limits:
        return BudgetChoice(None, numbers[0].by)
    least = min(limits, key=lambda said: said.value)
    others = [said for said in limits if said.value != least.value]
    words = ", ".join(f"{said.by} {said.value}" for said in [least, *others])
    notices = (f"budgets of the request: {words}; the smallest holds",) if others else ()
    return BudgetChoice(least.value, least.by, notices)


def _by_effort(asked: Asked, efforts: Mapping[str, int | None]) -> BudgetChoice | None:
    """The budget of the effort's name: ours first, else the smallest of the others."""
    names = [asked.own_effort] if asked.own_effort is not None else list(asked.efforts)
    if not efforts and asked.own_effort is None:
        return None
    sizes: list[Said[int]] = []
    for name in [*names, *(asked.efforts if asked.own_effort is not None and efforts else ())]:
        known = name.value if name.value in efforts else name.value.strip().lower()
        if known not in efforts:
            listed = ", ".join(efforts) or "none is set (control.efforts)"
            raise ApiError(
                400,
                f"'{name.by}' is {shorten(name.value)}: no effort of that name. Send one of: {listed}; or "
                "an exact desist.budget.",
                param=name.by,
                code="invalid_value",
            )
        size = efforts[known]
        sizes.append(Said(NO_LIMIT if size is None else size, name.by))
    return _smallest(sizes[: len(names)]) if names else None


def _check_ceiling(choice: BudgetChoice, tenant: Tenant) -> None:
    if tenant.allows_budget(choice.budget):
        return
    asked = "no limit" if choice.budget is None else f"{choice.budget} reasoning tokens"
    raise ApiError(
        403,
        f"'{choice.by}' asks for {asked}; this key may have {tenant.budget} at most. Send that or less, or "
        "leave it out.",
        param=choice.by,
        code="above_ceiling",
    )


def _clamped(choice: BudgetChoice, max_tokens: int | None, min_answer: int) -> BudgetChoice:
    """A budget that leaves no room for the answer within `max_tokens` is lowered, and that is said."""
    if choice.budget is None or max_tokens is None:
        return choice
    reserve = answer_reserve(max_tokens, min_answer)
    room = max(0, max_tokens - reserve)
    if choice.budget <= room:
        return choice
    notice = (
        f"a budget of {choice.budget} ({choice.by}) leaves less than {reserve} of {max_tokens} tokens for "
        f"the answer: thinking gets {room}"
    )
    return replace(choice, budget=room, by="max_tokens", notices=(*choice.notices, notice))
