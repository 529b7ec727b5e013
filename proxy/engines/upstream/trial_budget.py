"""Which field limits thinking on a server: shown by a budget so small that it must bind.

A field counts only if it moves the length of thinking as it was told to. A prompt that makes the model think
less than the budget proves nothing, and a field that is taken in silence proves nothing either.
"""

from __future__ import annotations

import asyncio
import math

from desist.proxy.controls.aliases import ALIASES
from desist.proxy.engines.upstream.seen import Seen
from desist.proxy.engines.upstream.trial_thinking import LONG, Found
from desist.proxy.engines.upstream.trials import PROBLEM, Trials, nested

__all__ = ["BUDGET", "BUDGET_FIELDS", "look_at_budgets"]

BUDGET, _SECOND = 8, 20  # tokens
_LONGEST_TALE = 64  # tokens of a sentence that a server writes before it closes thinking
_LEAST = 3 * BUDGET  # tokens that the model must think without a budget
_AT_ONCE = 4
_SLACK = 3  # tokens: some servers wait for the end of a line or of a character
_HARDER = (
    "Find every two-digit number that is divisible by 3, whose digits differ by 2 and whose double has three "
    "digits. Check them one by one, then check the list again."
)
#: Of the table of controls, those with a number of tokens, in its order.
BUDGET_FIELDS: tuple[str, ...] = tuple(each.name for each in ALIASES if each.kind == "budget")


async def look_at_budgets(trials: Trials, found: Found, first: Seen) -> None:
    """Tries each field, until one binds."""
    found.values["native_budget"] = None
    if not found.values.get("thinks"):
        return
    problem, longest = PROBLEM, _thought(trials, found, first)
    if longest < _LEAST:
        problem = _HARDER
        longest = _thought(trials, found, await trials.ask(trials.body(LONG, problem=problem)))
    if longest < _LEAST:
        found.notes.append(
            f"native budget: the model thinks {longest} tokens only: a budget of {BUDGET} proves nothing"
        )
        return
    ignored, refused = [], []
    for start in range(0, len(BUDGET_FIELDS), _AT_ONCE):
        some = BUDGET_FIELDS[start : start + _AT_ONCE]
        answers = await asyncio.gather(
            *(_with_budget(trials, found, problem, name, BUDGET, longest) for name in some)
        )
        for name, seen in zip(some, answers, strict=True):
            if seen.failure is not None:
                refused.append(f"{name}: {seen.failure}")
            elif not _short(trials, found, seen, longest):
                ignored.append(name)
            elif await _moves(trials, found, problem, name, seen, longest):
                offset = _thought(trials, found, seen) - BUDGET if seen.counted else 0
                found.values |= {"native_budget": name, "native_offset": offset}
                return
            else:
                found.notes.append(f"native budget: {name} shortens thinking but does not limit it: a hint")
    told = f"native budget: none binds. Taken and ignored: {', '.join(ignored) or 'none'}"
    found.notes.append(told + await _speculates(trials))
    if refused:
        found.notes.append(f"native budget: refused: {'; '.join(dict.fromkeys(refused))}")


async def _with_budget(
    trials: Trials, found: Found, problem: str, name: str, budget: int, longest: int
) -> Seen:
    body = trials.body(LONG, problem=problem, **nested(name, budget))
    most = min(longest, budget + _LONGEST_TALE)

    def enough(seen: Seen) -> bool:
        closed = seen.closed(trials.profile, opened=found.opened)
        return (closed and seen.finish is not None) or seen.generated > most + _LONGEST_TALE

    return await trials.ask(body, enough=enough)


def _thought(trials: Trials, found: Found, seen: Seen) -> int:
    return seen.thought(trials.profile, opened=found.opened)


def _short(trials: Trials, found: Found, seen: Seen, longest: int) -> bool:
    """Whether thinking ended, at most half as long as without a budget."""
    closed = seen.closed(trials.profile, opened=found.opened) or bool(seen.raw and not seen.reasoning)
    return closed and 2 * _thought(trials, found, seen) <= longest


async def _moves(trials: Trials, found: Found, problem: str, name: str, seen: Seen, longest: int) -> bool:
    """Whether a second budget lengthens thinking by as much as it is larger."""
    second = await _with_budget(trials, found, problem, name, _SECOND, longest)
    if second.failure is not None:
        return False
    grown, wanted = _thought(trials, found, second) - _thought(trials, found, seen), _SECOND - BUDGET
    if not second.counted:  # a guess from characters: what is left to see is that a larger budget gives more
        return wanted / 3 <= grown <= 3 * wanted
    lump = math.ceil(second.generated / max(1, second.chunks))
    return abs(grown - wanted) <= _SLACK + lump


async def _speculates(trials: Trials) -> str:
    metrics = await trials.get("/metrics") or ""
    if "spec_decode" not in metrics:
        return ""
    return ". Speculative decoding is on: some versions of vLLM skip their thinking budget under it"
