"""A real vLLM engine in this process, on the CPU, with the plugin or without; and what it reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import desist.data.reasoner
import desist.probes
from desist.data.schema import Problem
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.wire import Closed, Event, Opened, Scored, Stopped

MODEL = Path(desist.data.reasoner.__file__).parent / "weights"
PROBES = Path(desist.probes.__file__).parent / "builtin"
#: Preemption, prefill in chunks and prefix caching all at once.
TIGHT = {
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "block_size": 32,
    "num_gpu_blocks_override": 20,
}


def require_vllm() -> None:
    """Skip where vLLM is not installed, and make it run in this process, on the CPU, quietly."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")


def plugin_config(**values: Any) -> PluginConfig:
    """The built-in reasoner with both its probes, no sockets."""
    defaults: dict[str, Any] = {
        "profile": "desist-reasoner", "probe": PROBES / "lynx", "rom": PROBES / "rom",
        "events": None, "commands": None,
    }  # fmt: skip
    return PluginConfig(**(defaults | values))


@dataclass
class OfflineEngine:
    """`vllm.LLM` with the plugin. `events` grows while it runs."""

    llm: Any
    runtime: Any = None
    installed: Any = None
    events: list[Event] = field(default_factory=list)

    @classmethod
    def start(cls, config: PluginConfig | None, model: Path = MODEL, **engine: Any) -> OfflineEngine:
        from vllm import LLM

        from desist.proxy.engines.vllm.config import PROCESSOR
        from desist.proxy.engines.vllm.inside import assembly

        arguments: dict[str, Any] = {
            "dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "block_size": 32, "seed": 0,
            "disable_log_stats": False, "enable_prefix_caching": True,
        }  # fmt: skip
        if config is not None:
            arguments |= {"logits_processors": [PROCESSOR], "additional_config": config.as_additional()}
        llm = LLM(str(model), **(arguments | engine))
        if config is None:
            return cls(llm)
        installed = assembly.installed(llm.llm_engine.vllm_config)
        assert installed is not None
        made = cls(llm, installed.runtime, installed)
        installed.runtime.sinks.append(made.events.extend)
        return made

    def run(
        self, prompts: Sequence[Sequence[int]], params: Sequence[Any], *, texts: bool = False
    ) -> list[tuple[int, ...]]:
        """Generated ids of all prompts, and one step more, in which the plugin hears of the last ends."""
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self.llm.generate(given, list(params), use_tqdm=False)
        self.llm.llm_engine.step()
        self.outputs = outputs
        return [tuple(output.outputs[0].token_ids) for output in outputs]

    def told(self, kind: type[Any], key: str | None = None) -> list[Any]:
        """Events of one kind, of one key or of all."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and (key is None or event.identity.key == key)
        ]

    def metric(self, name: str) -> float:
        """A counter of vLLM's."""
        return sum(each.value for each in self.llm.get_metrics() if each.name == name)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


def xargs(key: str, **values: Any) -> dict[str, Any]:
    """`vllm_xargs` of a request."""
    return {"desist_key": key, **{f"desist_{name}": value for name, value in values.items()}}


def complete(events: Sequence[Event]) -> bool:
    """Whether every request of these events has all of its numbered events, between its two ends."""
    opened = [event.identity for event in events if isinstance(event, Opened)]
    closed = {event.identity: event.n for event in events if isinstance(event, Closed)}
    numbers: dict[Any, list[int]] = {}
    for event in events:
        if not isinstance(event, (Opened, Closed)) and hasattr(event, "n"):
            numbers.setdefault(event.identity, []).append(event.n)
    return (
        len(set(opened)) == len(opened)
        and set(opened) == set(closed)
        and all(numbers.get(each, []) == list(range(closed[each])) for each in opened)
    )


def prompts_of(problems: Sequence[Problem]) -> list[tuple[int, ...]]:
    """Rendered prompts of the built-in reasoner."""
    from desist.proxy.engines.model import read_model

    facts = read_model(MODEL, dtype="float32")
    return [facts.chat_ids([{"role": "user", "content": problem.text}]) for problem in problems]


__all__ = [
    "MODEL", "PROBES", "TIGHT", "Closed", "OfflineEngine", "Scored", "Stopped", "complete", "plugin_config",
    "prompts_of", "require_vllm", "xargs",
]  # fmt: skip
