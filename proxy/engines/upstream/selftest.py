"""What an upstream server does, found out by tiny requests: `examine`.

Knows the order of the trials. Each is bounded in time and tokens, and whatever fails in it becomes a note: a
server that refuses everything has no capabilities, and that is a finding too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from desist.controller.profile import ModelProfile
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.upstream.trial_budget import look_at_budgets
from desist.proxy.engines.upstream.trial_cancel import look_at_cancel
from desist.proxy.engines.upstream.trial_continue import look_at_continuation, look_at_final_message
from desist.proxy.engines.upstream.trial_thinking import Found, first_answer, look_at_tags, look_at_thinking
from desist.proxy.engines.upstream.trials import Trials
from desist.proxy.settings import UpstreamSettings

__all__ = ["examine"]

_TOOL = {
    "type": "function",
    "function": {
        "name": "count_nuts",
        "description": "Counts nuts.",
        "parameters": {"type": "object", "properties": {"bags": {"type": "integer"}}, "required": ["bags"]},
    },
}


async def examine(
    client: UpstreamClient,
    settings: UpstreamSettings,
    profile: ModelProfile,
    model: str,
    *,
    trial_s: float = 60.0,
    total_s: float = 240.0,
    cancel: bool = True,
) -> Capabilities:
    """Try out one model of a server, whose `client` is started. Never raises for what the server does.

    About 20 requests of at most 192 tokens; one trial ends after `trial_s` seconds, all of them after
    `total_s`. `cancel`: try too whether the server notices that a client has left (a request of up to 1024
    tokens that is left at once, if all is well).
    """
    trials, found = Trials(client, settings, profile, model, trial_s), Found()
    if profile.thinking_switch and not profile.thinks_by_default:
        trials.template[profile.thinking_switch[0]] = True
    end = time.monotonic() + total_s
    first = await first_answer(trials, found)
    if first.failure is not None:
        found.notes.append(f"start: the first request failed, nothing else was tried: {first.failure}")
        return Capabilities(streams=first.streams, notes=tuple(found.notes))
    steps: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("thinking", lambda: look_at_thinking(trials, found, first)),
        ("tags", lambda: look_at_tags(trials, found)),
        ("continuation", lambda: look_at_continuation(trials, found, first)),
        ("final message", lambda: look_at_final_message(trials, found, first)),
        ("choices", lambda: _choices(trials, found)),
        ("tools", lambda: _tools(trials, found)),
    ]
    if cancel:  # before requests are left that a deaf server would go on with
        steps.append(("cancel", lambda: look_at_cancel(trials, found)))
    steps.append(("native budget", lambda: look_at_budgets(trials, found, first)))
    for what, step in steps:
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await step()
        except TimeoutError:
            found.notes.append(f"{what}: not tried to its end: all trials together may take {total_s:g} s")
        except Exception as error:  # what a strange server makes of our trials must not end a proxy
            found.notes.append(f"{what}: the trial failed ({type(error).__name__}: {error})")
    return Capabilities(**found.values, notes=tuple(found.notes), conflicts=tuple(found.conflicts))


async def _choices(trials: Trials, found: Found) -> None:
    seen = await trials.ask(trials.body(4, n=2, temperature=1.0))  # greedy choices would all be one
    found.values["choices"] = seen.failure is None and len(seen.choices) == 2
    if not found.values["choices"]:
        why = seen.failure or f"{len(seen.choices)} came"
        found.notes.append(f"choices: n = 2 does not give two choices: {why}")


async def _tools(trials: Trials, found: Found) -> None:
    seen = await trials.ask(trials.body(8, tools=[_TOOL], tool_choice="auto"))
    found.values["tools"] = seen.failure is None
    if seen.failure is not None:
        found.notes.append(f"tools: a request with tools is refused: {seen.failure}")
