"""Whether an engine has a device path, and the path put together. A reason against it is logged once.

Knows the V2 runner and vLLM's configuration by their fields. Without a GPU there is none, unless `kernels:
triton` asks for the kernels (which the interpreter then runs, for tests).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, get_args

import torch

from desist.controller.automaton import TokenAutomaton, automaton_for
from desist.controller.core import AnswerMode
from desist.kernels.choice import chosen
from desist.kernels.lanes import LANES
from desist.proxy.engines.vllm.inside.device_path import DevicePath
from desist.proxy.engines.vllm.inside.device_probes import kernels_of
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots
from desist.proxy.engines.vllm.inside.device_tables import Tables, device_tables

if TYPE_CHECKING:
    from desist.proxy.engines.vllm.inside.assembly import Installed

__all__ = ["device_path_for"]

logger = logging.getLogger(__name__)
_LEAST_HANDOFF = 16  # ids that a slot has room for at least


def device_path_for(runner: Any, vllm_config: Any, plugin: Installed) -> DevicePath | None:
    """The device path of an engine on the V2 runner, its model just loaded; None: the host does it all."""
    device = torch.device(plugin.device)
    reason = _refusal(runner, plugin, device)
    if reason is None:
        runtime = plugin.runtime
        found = automaton_for(runtime.profile, runtime.vocabulary, int(runner.req_states.vocab_size))
        if isinstance(found, TokenAutomaton):
            try:
                tables = device_tables(found, runtime.vocabulary, device)
            except ValueError as error:
                reason = str(error)
            else:
                return _put_together(runner, vllm_config, plugin, tables, device)
        else:
            reason = found
    logger.info("desist: decisions are the host's, not the device's: %s", reason)
    return None


def _put_together(
    runner: Any, vllm_config: Any, plugin: Installed, tables: Tables, device: torch.device
) -> DevicePath:
    runtime = plugin.runtime
    texts = [runtime.profile.handoff(answer) for answer in get_args(AnswerMode)]
    longest = max(len(runtime.vocabulary.encode(text)) for text in texts)
    slots = DeviceSlots(
        int(runner.max_num_reqs),
        int(runner.num_speculative_steps),
        handoff=max(_LEAST_HANDOFF, longest),
        device=device,
    )
    lag = int(bool(vllm_config.scheduler_config.async_scheduling))
    logger.info("desist: decisions are the device's; the host hears of them %d steps later", lag)
    path = DevicePath(runtime, kernels_of("triton"), tables, slots, lag=lag)
    if path.probes_for(runtime.scoring) is None:
        logger.info("desist: the kernels do not take these probes, the host decides")
    elif device.type == "cuda":  # else nothing is compiled
        dtype = vllm_config.model_config.dtype
        hidden = torch.zeros(1, plugin.facts.hidden_size, dtype=dtype, device=device)
        most = slots.count * (int(runner.num_speculative_steps) + 1)
        counts = {min(lanes, most) for lanes in LANES}
        path.warm_up(hidden, int(runner.req_states.vocab_size), sorted(counts))
    return path


def _refusal(runner: Any, plugin: Installed, device: torch.device) -> str | None:
    """What stands against a device path, as far as the configuration tells."""
    config, runtime = plugin.config, plugin.runtime
    if config.kernels == "torch" or chosen(config.kernels, device) != "triton":
        return f"the kernels do not run on {device} (kernels: {config.kernels})"
    if not runtime.score_here:
        return "decide is 'proxy'"
    if runtime.stream.dtype is not None or runtime.stream.token_layer is not None:
        return "hidden states leave the engine, and the host sends them"
    if getattr(runner.model_state, "num_new_sampled_tokens_per_step", 1) != 1:
        return "this model samples no single next token"
    return None
