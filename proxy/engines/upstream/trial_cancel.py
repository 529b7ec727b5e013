"""Whether a server notices that its client has left: seen in what the server counts, else unknown.

Knows the gauges of vLLM, SGLang and llama.cpp in Prometheus' text form, and vLLM's /load.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from desist.proxy.engines.upstream.seen import Seen
from desist.proxy.engines.upstream.trial_thinking import Found
from desist.proxy.engines.upstream.trials import Trials

__all__ = ["look_at_cancel"]

_LONG = 1024  # tokens that the left request would still write
_WATCHED_S, _EVERY_S = 3.0, 0.25
_AT_ONCE = 4  # looks
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_GENERATED = ("vllm:generation_tokens", "sglang:generation_tokens", "llamacpp:tokens_predicted")


class _Load(NamedTuple):
    """Requests that run, and tokens generated so far (None: not told)."""

    running: float
    generated: float | None


async def look_at_cancel(trials: Trials, found: Found) -> None:
    """Leave a long answer after its first chunks, and watch the server."""
    found.values["cancels"] = None
    before = await _load(trials)
    if before is None:
        found.notes.append("cancel: the server tells neither /metrics nor /load: unknown whether it stops")
        return
    during: list[_Load] = []

    def enough(seen: Seen) -> bool:
        return seen.chunks >= 2 and bool(during)

    async def leave_early() -> str | None:
        for limit in (_LONG, _LONG // 4):
            asked = asyncio.create_task(trials.ask(trials.body(limit, ignore_eos=True), enough=enough))
            while not asked.done() and not during:
                await asyncio.sleep(_EVERY_S)
                load = await _load(trials)
                if load is not None and load.running > before.running:
                    during.append(load)
            seen = await asked
            if seen.failure is None or during:
                return None
        return seen.failure

    failure = await leave_early()
    if failure is not None:
        found.notes.append(f"cancel: the trial failed: {failure}")
    elif not during:
        found.notes.append("cancel: the server's own count of running requests did not move: unknown")
    else:
        found.values["cancels"] = await _ends(trials, before, during[-1])
        if found.values["cancels"] is None:
            found.notes.append("cancel: others use this server too: unknown whether it stops")


async def _ends(trials: Trials, before: _Load, during: _Load) -> bool | None:
    """Whether the request that was left is gone before it can have come to its own end."""
    latest: _Load | None = during
    for look in range(int(_WATCHED_S / _EVERY_S)):
        await asyncio.sleep(_EVERY_S)
        await trials.ask(trials.body(1))  # some servers count only while they generate
        latest = await _load(trials)
        if latest is None or latest.running > before.running:
            continue
        if latest.generated is None or before.generated is None:
            return True if look < _AT_ONCE else None  # later it may have come to its own end
        return latest.generated - before.generated < _LONG // 4
    return False if before.running == 0 and latest is not None else None


async def _load(trials: Trials) -> _Load | None:
    told = await trials.get("/metrics")
    if told is not None and (load := _of_metrics(told)) is not None:
        return load
    plain = await trials.get("/load")
    try:
        found = msgspec.json.decode(plain) if plain is not None else None
    except msgspec.DecodeError:
        return None
    load_now = found.get("server_load") if isinstance(found, dict) else None
    return _Load(load_now, None) if isinstance(load_now, (int, float)) else None


def _of_metrics(text: str) -> _Load | None:
    try:
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except ValueError:
        return None

    def total(names: tuple[str, ...]) -> float | None:
        family = next((families[name] for name in names if name in families), None)
        if family is None:
            return None
        return sum(each.value for each in family.samples if not each.name.endswith("_created"))

    running = total(_RUNNING)
    return None if running is None else _Load(running, total(_GENERATED))
