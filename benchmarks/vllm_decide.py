"""What it costs to decide in the proxy: tokens of delay, bytes per boundary, decisions late and lost.

    python -m benchmarks.vllm_decide --n 400 --in-flight 16

Starts vLLM with the built-in reasoner (`decide: proxy`, hidden states in float32) and serves fresh problems in a
closed loop, through the engine that `desist serve --engine vllm --decide proxy` uses. Run it on an idle machine:
proxy and vLLM share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from desist.controller import Control
from desist.data.schema import Problem
from desist.proxy.engines.base import Finished, GenerationRequest
from desist.proxy.engines.vllm.beside.engine import VllmEngine
from desist.proxy.live.certificates import load_points
from desist.proxy.settings import Settings, VllmSettings
from desist.proxy.studies.builtin import builtin_problems

_WARM_UP = 32  # requests before the counters count


async def measure(n: int, in_flight: int, seed: int, stream: str) -> dict[str, Any]:
    """The figures of `n` requests."""
    settings = Settings(
        engine="vllm", vllm=VllmSettings.model_validate({"decide": "proxy", "stream": stream, "log": False})
    )
    engine = VllmEngine(settings)
    try:
        await engine.start()
        policy = load_points(settings, engine.fingerprints)[0].policy
        problems = builtin_problems("test", seed, n + _WARM_UP)
        ends: list[Finished] = []
        await serve(engine, Control("active", policy), problems[:_WARM_UP], in_flight, "warm", [])
        before = counted(engine)
        await serve(engine, Control("active", policy), problems[_WARM_UP:], in_flight, "run", ends)
        after = counted(engine)
    finally:
        await engine.close()
    found = {name: after[name] - before[name] for name in after}
    stops = found["delay_count"]
    return {
        "requests": len(ends),
        "in_flight": in_flight,
        "stopped_by_probe": int(stops),
        "within_1_token": found["within_1"] / stops if stops else None,
        "within_2_tokens": found["within_2"] / stops if stops else None,
        "mean_delay_tokens": found["delay_sum"] / stops if stops else None,
        "late": int(found["late"]),
        "lost": int(found["lost"] + found["failed"]),
        "bytes_per_boundary": found["bytes"] / found["boundaries"] if found["boundaries"] else None,
        "events_lost": int(found["events_lost"]),
        "uncontrolled": sum(end.uncontrolled is not None for end in ends),
    }


async def serve(
    engine: VllmEngine,
    control: Control,
    problems: Sequence[Problem],
    in_flight: int,
    name: str,
    ends: list[Finished],
) -> None:
    """Serve all problems, `in_flight` at a time."""
    places = asyncio.Semaphore(in_flight)

    async def one(number: int, problem: Problem) -> None:
        message = {"role": "user", "content": problem.text}
        request = GenerationRequest(
            f"{name}-{number}/0", "desist-reasoner", engine.sampling, control, messages=(message,)
        )
        async with places:
            async for event in engine.generate(request):
                if isinstance(event, Finished):
                    ends.append(event)

    await asyncio.gather(*(one(number, problem) for number, problem in enumerate(problems)))


def counted(engine: VllmEngine) -> dict[str, float]:
    """The engine's counters now."""
    registry = CollectorRegistry()
    engine.register_metrics(registry)
    delay = "desist_vllm_proxy_decision_delay_tokens"
    wanted: dict[str, tuple[str, dict[str, str]]] = {
        "within_1": (f"{delay}_bucket", {"le": "1.0"}),
        "within_2": (f"{delay}_bucket", {"le": "2.0"}),
        "delay_sum": (f"{delay}_sum", {}),
        "delay_count": (f"{delay}_count", {}),
        "events_lost": ("desist_vllm_events_total", {"kind": "lost"}),
    }
    for outcome in ("late", "lost", "failed"):
        wanted[outcome] = ("desist_vllm_proxy_decisions_total", {"outcome": outcome})
    found = {
        name: registry.get_sample_value(sample, labels) or 0.0 for name, (sample, labels) in wanted.items()
    }
    for name in ("bytes", "boundaries"):
        samples = (f"desist_vllm_streamed_{name}_total", ("float32", "bfloat16"))
        found[name] = sum(
            registry.get_sample_value(samples[0], {"dtype": kind}) or 0.0 for kind in samples[1]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", choices=("float32", "bfloat16"), default="float32")
    asked = parser.parse_args()
    found = asyncio.run(measure(asked.n, asked.in_flight, asked.seed, asked.stream))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
