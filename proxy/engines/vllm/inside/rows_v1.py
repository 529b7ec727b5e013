"""The V1 model runner: which rows of a step are live, and the hook on its sampling.

A row is live iff the token it has read is the newest one that the request has: rows of a prefill in chunks,
also of the one after a preemption, are not. Rows at which nothing can happen are passed over (`attention`),
and the next one of the request brings their tokens along. Under async scheduling the host does not know the
newest tokens (it holds -1 in their place), so they are read from the device, which waits for the forward
pass, and no row is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from desist.proxy.engines.vllm.inside.assembly import Installed, installed
from desist.proxy.engines.vllm.inside.evidence import RowOf
from desist.proxy.engines.vllm.inside.taps import StepTaps

__all__ = ["INTERNALS", "generated", "hook_sampling", "live_rows"]

INTERNALS = ("input_batch", "requests", "query_start_loc", "input_ids", "use_aux_hidden_state_outputs")


def generated(runner: Any, request_id: str) -> Sequence[int]:
    """The ids that a request has generated, the newest of which no row has read."""
    request = None if _is_async(runner) else runner.requests.get(request_id)
    return () if request is None else request.output_token_ids


def _is_async(runner: Any) -> bool:
    """Whether steps are scheduled before the tokens of the last one are known to the host."""
    return bool(getattr(runner, "use_async_scheduling", False))


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
        output = original(*args, **kwargs)
        if plugin is not None and output is not None and not _is_async(runner):
            with plugin.runtime.guarded("hearing the tokens", plugin.runtime.tracked.values()):
                plugin.runtime.attention.sampled(output.req_ids, output.sampled_token_ids)
        return output

    runner.sample_tokens = sample_tokens


def live_rows(
    runner: Any, scheduled: dict[str, int], tracked: Any, wanted: Iterable[str] | None = None
) -> list[RowOf]:
    """Rows of tracked requests that have just read their newest token; with `wanted`, of these only."""
    batch = runner.input_batch
    index = batch.req_id_to_index
    newest: list[int] | None = None
    found = []
    for row in sorted(index[each] for each in (tracked if wanted is None else wanted) if each in index):
        request_id = batch.req_ids[row]
        length = int(batch.num_computed_tokens_cpu[row]) + scheduled[request_id]
        if length != int(batch.num_tokens_no_spec[row]):
            continue
        token = int(batch.token_ids_cpu[row, length - 1])
        if token < 0 or _is_async(runner):
            if newest is None:
                at = runner.query_start_loc.gpu[1 : len(batch.req_ids) + 1].long() - 1
                newest = runner.input_ids.gpu[at].tolist()
            token = newest[row]
        missed: Sequence[int] = ()
        if wanted is not None:
            one = tracked[request_id]
            missed = batch.token_ids_cpu[row, one.prompt_tokens + one.read : length - 1].tolist()
        found.append(RowOf(request_id, row, row, length - 1, token, missed=missed))
    return found


def _step(runner: Any, plugin: Installed, state: Any) -> None:
    plugin.obey_commands()  # a decision from outside had the whole forward pass to arrive
    runtime = plugin.runtime
    wanted = None if _is_async(runner) else runtime.attention.wanted
    if wanted is not None and not wanted:
        runtime.tick()
        return
    rows = live_rows(runner, state.scheduler_output.num_scheduled_tokens, runtime.tracked, wanted)
    if not rows:
        runtime.tick()
        return
    places = runner.query_start_loc.np[1 : len(runner.input_batch.req_ids) + 1] - 1
    inner = state.aux_hidden_states or ()
    runtime.step(rows, StepTaps(state.hidden_states, inner, plugin.inner_layers, plugin.n_layers, places))
