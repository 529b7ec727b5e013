"""What cannot work is refused before anything is loaded, each time with the reason and the remedy.

Knows vLLM's configuration object by its fields. `desist doctor` prints the same list.
"""

from __future__ import annotations

from typing import Any

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.config import PROCESSOR, PluginConfig

__all__ = ["impossible", "refuse_impossible"]


def refuse_impossible(vllm_config: Any, config: PluginConfig) -> None:
    """Raise `EngineError` with every reason why this server cannot run the plugin."""
    reasons = impossible(vllm_config, config)
    if reasons:
        raise EngineError("desist cannot run in this vLLM:\n  " + "\n  ".join(reasons))


def impossible(vllm_config: Any, config: PluginConfig) -> list[str]:
    """The reasons why a configuration cannot work; empty where it can."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    speculative, v2 = vllm_config.speculative_config, bool(vllm_config.use_v2_model_runner)
    found = []
    if not any(_is_processor(each) for each in model.logits_processors or ()):
        found.append(f"the hand-off cannot be forced: add --logits-processors {PROCESSOR}")
    if model.runner_type == "pooling":
        found.append("a pooling model does not think: take the object 'desist' out of --additional-config")
    if parallel.pipeline_parallel_size > 1:
        found.append(
            f"pipeline parallelism ({parallel.pipeline_parallel_size}) is not supported: the inner layers "
            "are on other ranks. Use tensor parallelism"
        )
    if getattr(parallel, "enable_batch_sharded_sampling", None):
        found.append(
            "batch-sharded sampling hides rows from the probe: set enable_batch_sharded_sampling off"
        )
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        found.append("prefill context parallelism splits the rows over ranks: set it to 1")
    if speculative is not None and not v2:
        found.append(
            "the V1 model runner takes no logits processors with speculative decoding: use the V2 runner "
            "(VLLM_USE_V2_MODEL_RUNNER=1), or no speculation"
        )
    if speculative is not None and getattr(speculative, "enable_adaptive_verification", False):
        found.append("adaptive verification drops rows on the device: set enable_adaptive_verification off")
    if vllm_config.lora_config is not None:
        found.append(
            "LoRA adapters change the hidden states that the probe was trained on: serve without "
            "--enable-lora"
        )
    if config.decide == "proxy" and parallel.tensor_parallel_size > 1:
        found.append(
            "decide 'proxy' with tensor parallelism: a decision from outside would reach the ranks at "
            "different steps. Use decide 'engine'"
        )
    structured = getattr(vllm_config, "structured_outputs_config", None)
    if getattr(structured, "enable_in_reasoning", False):
        found.append(
            "enable_in_reasoning binds thinking to the answer's grammar, so that it never ends: take it out "
            "of --structured-outputs-config"
        )
    found += _reasoning_parser(vllm_config, config)
    return found


def _is_processor(named: Any) -> bool:
    name = named if isinstance(named, str) else f"{named.__module__}:{named.__qualname__}"
    return name == PROCESSOR


def _reasoning_parser(vllm_config: Any, config: PluginConfig) -> list[str]:
    """A parser that ends reasoning at another tag than the hand-off writes."""
    reasoning = vllm_config.reasoning_config
    end = getattr(reasoning, "reasoning_end_str", "") if reasoning is not None else ""
    close = config.model_profile.think_close
    # vLLM's own end text may hold a sentence before the tag, as our hand-offs do.
    if end and close not in end:
        return [
            f"the reasoning parser ends at {end!r}, profile '{config.profile}' at {close!r}: choose the "
            "profile of this model, or another --reasoning-parser"
        ]
    return []
