"""What can be told of a vLLM from its command line alone, before any model is loaded.

Knows the flags by which vLLM is split over devices, speculates, or is given a parser; judges them by the list
that the plugin itself goes by at its start. Flags in a file (`--config`) are not seen here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from desist.proxy.engines.vllm.config import PROCESSOR, PluginConfig
from desist.proxy.engines.vllm.inside.checks import impossible

__all__ = ["foreseen", "parallelism", "planned"]

_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-sc": "--speculative-config",
          "-pcp": "--prefill-context-parallel-size"}  # fmt: skip


def planned(args: Sequence[str], *, v2: bool) -> Any:
    """A stand-in for vLLM's configuration, with what `impossible` reads. `v2`: the V2 runner is used."""
    given = _read(args)
    speculative = given.get("--speculative-config")
    reasoning = given.get("--reasoning-config")
    end = reasoning.get("reasoning_end_str", "") if isinstance(reasoning, dict) else ""
    structured = given.get("--structured-outputs-config")
    inside = structured.get("enable_in_reasoning") if isinstance(structured, dict) else None
    return SimpleNamespace(
        model_config=SimpleNamespace(
            logits_processors=[PROCESSOR],
            runner_type="pooling" if given.get("--runner") == "pooling" else "generate",
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=_number(given.get("--pipeline-parallel-size")),
            tensor_parallel_size=_number(given.get("--tensor-parallel-size")),
            prefill_context_parallel_size=_number(given.get("--prefill-context-parallel-size")),
            enable_batch_sharded_sampling=_flag(given.get("--enable-batch-sharded-sampling")),
        ),
        speculative_config=None
        if speculative is None
        else SimpleNamespace(
            enable_adaptive_verification=isinstance(speculative, dict)
            and bool(speculative.get("enable_adaptive_verification"))
        ),
        lora_config=SimpleNamespace() if _flag(given.get("--enable-lora")) else None,
        reasoning_config=SimpleNamespace(reasoning_end_str=end) if end else None,
        structured_outputs_config=SimpleNamespace(enable_in_reasoning=_flag(inside)),
        use_v2_model_runner=v2,
    )


def foreseen(args: Sequence[str], config: PluginConfig, *, cpu: bool) -> list[str]:
    """Why a vLLM that is started with these arguments cannot run the plugin; empty where nothing is seen."""
    asked = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    v2 = asked == "1" if cpu or asked is not None else True
    return impossible(planned(args, v2=v2), config)


def parallelism(args: Sequence[str]) -> int:
    """The tensor parallelism that the arguments ask for."""
    return _number(_read(args).get("--tensor-parallel-size"))


def _read(args: Sequence[str]) -> dict[str, Any]:
    """Values by flag. A flag without a value is True; `--a.b c` sets a key of an object, as in vLLM."""
    found: dict[str, Any] = {}
    waiting: str | None = None
    for arg in args:
        if arg.startswith("-") and not _is_number(arg):
            name, has_value, value = arg.partition("=")
            name = _SHORT.get(name, "--" + name.lstrip("-").replace("_", "-"))
            _put(found, name, _value(value) if has_value else True)
            waiting = None if has_value else name
        elif waiting is not None:
            _put(found, waiting, _value(arg))
            waiting = None
    return found


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    flag, inner, key = name.partition(".")
    if not inner:
        found[flag] = value
        return
    held = found.get(flag)
    found[flag] = (held if isinstance(held, dict) else {}) | {key.replace("-", "_"): value}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _flag(value: Any) -> bool:
    return value is not None and value is not False and value != "false"
