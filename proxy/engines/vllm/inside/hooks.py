"""Hooks on one model runner: loading, scheduling and sampling, for vLLM's V1 and V2 runners.

The hooks stand on the instance, so that another engine in the same process is not touched. Knows the few
internals of vLLM that are used, and checks them at the start: a release that lacks one is named there, not
by an AttributeError in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.config import TESTED, PluginConfig
from desist.proxy.engines.vllm.inside import rows_v1, rows_v2
from desist.proxy.engines.vllm.inside.assembly import Installed, assemble, forget, installed
from desist.proxy.engines.vllm.inside.device_assembly import device_path_for

__all__ = ["hook_runner", "require_internals", "take_in"]

_RUNNER = ("load_model", "execute_model", "sample_tokens", "get_model", "execute_model_state")


def require_internals(where: object, names: tuple[str, ...], what: str) -> None:
    """Raise `EngineError` naming this vLLM's version where an internal that the plugin uses is missing."""
    missing = [name for name in names if not hasattr(where, name)]
    if missing:
        import vllm

        raise EngineError(
            f"this vLLM ({vllm.__version__}) has no {', '.join(missing)} on its {what}, which the desist "
            f"plugin uses. Tested: vLLM {', '.join(TESTED)}. Install one of these, or take the object "
            "'desist' out of --additional-config."
        )


def hook_runner(runner: Any, vllm_config: Any, config: PluginConfig) -> None:
    """Hook a runner that was just made, before it loads its model. Raises `EngineError`."""
    v2 = hasattr(runner, "req_states")
    rows = rows_v2 if v2 else rows_v1
    require_internals(runner, (*_RUNNER, *rows.INTERNALS), f"{'V2' if v2 else 'V1'} model runner")
    original: dict[str, Callable[..., Any]] = {
        name: getattr(runner, name) for name in ("load_model", "execute_model", "sample_tokens")
    }

    def load_model(*args: Any, **kwargs: Any) -> Any:
        result = original["load_model"](*args, **kwargs)
        plugin = assemble(vllm_config, config, runner="v2" if v2 else "v1")
        _set_taps(runner, plugin)
        if v2:
            plugin.path = device_path_for(runner, vllm_config, plugin)
        return result

    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        plugin = installed(vllm_config)
        if plugin is not None:
            with plugin.runtime.guarded("taking in requests"):
                take_in(plugin, scheduler_output, lambda request_id: rows.generated(runner, request_id))
        return original["execute_model"](scheduler_output, *args, **kwargs)

    runner.load_model, runner.execute_model = load_model, execute_model
    rows.hook_sampling(runner, vllm_config)
    if hasattr(runner, "shutdown"):
        end = runner.shutdown

        def shutdown(*args: Any, **kwargs: Any) -> Any:
            forget(vllm_config)
            return end(*args, **kwargs)

        runner.shutdown = shutdown


def take_in(plugin: Installed, scheduler_output: Any, generated: Callable[[str], Sequence[int]]) -> None:
    """Before a step: what the steps before it decided on the device, commands, who has ended, who comes."""
    finished = scheduler_output.finished_req_ids
    if plugin.path is not None:
        plugin.path.begin(scheduler_output.preempted_req_ids)
    plugin.obey_commands()
    plugin.runtime.left(finished, generated)
    if plugin.path is not None:
        plugin.path.drop(finished)
    _admit(plugin, scheduler_output)


def _admit(plugin: Installed, scheduler_output: Any) -> None:
    runtime = plugin.runtime
    for new in scheduler_output.scheduled_new_reqs:
        params = new.sampling_params
        if params is not None and params.extra_args:
            with runtime.guarded("taking in a request"):
                runtime.entered(
                    new.req_id,
                    new.prompt_token_ids or (),
                    params.max_tokens,
                    params.extra_args,
                    structured=params.structured_outputs is not None,
                )
                if plugin.path is not None:
                    plugin.path.adopt(new.req_id)
    runtime.flush()


def _set_taps(runner: Any, plugin: Installed) -> None:
    """Make the model return the inner layers that are read, beside those that a drafter reads."""
    if not plugin.inner_layers:
        return
    model = runner.get_model()
    require_internals(model, ("set_aux_hidden_state_layers",), f"model {type(model).__name__}")
    if runner.use_aux_hidden_state_outputs:
        raise EngineError(
            "the drafter of this server reads inner layers of the model itself (EAGLE-3 and its kin), and "
            "inner taps beside it were never tested. Use a probe on the last layer, or another speculation "
            "method."
        )
    with torch.inference_mode():
        model.set_aux_hidden_state_layers(plugin.inner_layers)
    runner.use_aux_hidden_state_outputs = True
