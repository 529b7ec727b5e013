"""The V1 model runner: which rows of a step are live, and the hook on its sampling.

A row is live iff the token it has read is the newest one that the request has: rows of a prefill in chunks,
also of the one after a preemption, are not. Under async scheduling the host does not know the newest tokens
(it holds -1 in their place), so they are read from the device, which waits for the forward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from desist.proxy.engines.vllm.inside.assembly import Installed, installed
from desist.proxy.engines.vllm.inside.evidence import RowOf
from desist.proxy.engines.vllm.inside.taps import StepTaps

__all__ = ["INTERNALS", "hook_sampling", "live_rows"]

INTERNALS = ("input_batch", "query_start_loc", "input_ids", "use_aux_hidden_state_outputs")


def hook_sampling(runner: Any, vllm_config: Any) -> None:
    """Score and decide before each sampling; `DesistProcessor.apply` forces within it."""
    original = runner.sample_tokens

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        plugin = installed(vllm_config)
        state = runner.execute_model_state
        if plugin is not None:
            plugin.runtime.forces = []
            if state is not None and plugin.runtime.tracked:
                with (
                    plugin.runtime.guarded("a step", plugin.runtime.tracked.values()),
                    torch.inference_mode(),
                ):
                    _step(runner, plugin, state)
        return original(*args, **kwargs)

    runner.sample_tokens = sample_tokens


def live_rows(runner: Any, scheduled: dict[str, int], tracked: Any) -> list[RowOf]:
    """Rows of tracked requests that have just read their newest token."""
    batch = runner.input_batch
    found = []
    newest: list[int] | None = None
    for row, request_id in enumerate(batch.req_ids):
        if request_id not in tracked:
            continue
        length = int(batch.num_computed_tokens_cpu[row]) + scheduled[request_id]
        if length != int(batch.num_tokens_no_spec[row]):
            continue
        token = int(batch.token_ids_cpu[row, length - 1])
        if token < 0 or getattr(runner, "use_async_scheduling", False):
            if newest is None:
                at = runner.query_start_loc.gpu[1 : len(batch.req_ids) + 1].long() - 1
                newest = runner.input_ids.gpu[at].tolist()
            token = newest[row]
        found.append(RowOf(request_id, row, row, length - 1, token))
    return found


def _step(runner: Any, plugin: Installed, state: Any) -> None:
    plugin.obey_commands()  # a decision from outside had the whole forward pass to arrive
    rows = live_rows(runner, state.scheduler_output.num_scheduled_tokens, plugin.runtime.tracked)
    if not rows:
        return
    at = runner.query_start_loc.gpu[1 : len(runner.input_batch.req_ids) + 1].long() - 1
    inner = state.aux_hidden_states or ()
    plugin.runtime.step(rows, StepTaps(state.hidden_states, inner, plugin.inner_layers, plugin.n_layers, at))
