"""The V2 model runner: which rows of a step are live, and the hooks on its sampling.

The inner layers are gone when `sample` is called, so they are kept from `sample_tokens` on. Under speculation
a request has one row per draft; which of them were taken is known after `sample`, and only then told.

Requests that the device controls (`device_path`) are decided there first, without a wait. The rows of all
others are read by the host, which then waits for the forward pass: only in steps that have such requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desist.proxy.engines.vllm.inside.assembly import Installed, installed
from desist.proxy.engines.vllm.inside.evidence import RowOf
from desist.proxy.engines.vllm.inside.taps import StepTaps

__all__ = ["INTERNALS", "generated", "hook_sampling", "live_rows"]

INTERNALS = ("req_states", "sample", "use_aux_hidden_state_outputs")


def generated(runner: Any, request_id: str) -> Sequence[int]:
    """Nothing: no row is passed over here, so that no token was missed."""
    return ()


def hook_sampling(runner: Any, vllm_config: Any) -> None:
    """Score and decide at the start of `sample`; `DesistProcessor.apply` forces within it."""
    sample_tokens, sample = runner.sample_tokens, runner.sample
    kept: list[Any] = [()]

    def with_inner(*args: Any, **kwargs: Any) -> Any:
        state = runner.execute_model_state
        kept[0] = () if state is None else state.aux_hidden_states or ()
        try:
            return sample_tokens(*args, **kwargs)
        finally:
            kept[0] = ()

    def scored(hidden_states: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        plugin = installed(vllm_config)
        if plugin is None:
            return sample(hidden_states, input_batch, *args, **kwargs)
        runtime = plugin.runtime
        runtime.forces, rows = [], []
        changed: set[int] = set()  # slots whose logits may be changed
        if runtime.tracked:
            with runtime.guarded("a step", runtime.tracked.values()), torch.inference_mode():
                plugin.obey_commands()  # a decision from outside had the whole forward pass to arrive
                taps = StepTaps(
                    hidden_states, kept[0], plugin.inner_layers, plugin.n_layers, input_batch.logits_indices
                )
                if plugin.path is not None:
                    changed |= plugin.path.step(input_batch, taps)
                rows = live_rows(input_batch, plugin.by_host)
                runtime.step(rows, taps)
                if plugin.path is not None and plugin.path.firsts:
                    runtime.forces += plugin.path.firsts
        # Only now does the sampler copy the logits to be changed, and only for a batch that may force.
        wanted = runner.sampler.needs_logits_processing
        changed.update(force.slot for force in runtime.forces)
        before = {slot: bool(wanted[slot]) for slot in changed}
        for slot in before:
            wanted[slot] = True
        try:
            result = sample(hidden_states, input_batch, *args, **kwargs)
        finally:
            for slot, needed in before.items():
                wanted[slot] = needed
        if plugin.path is not None:
            plugin.path.sampled(input_batch, result[0].sampled_token_ids, result[1])
        if any(row.draft for row in rows):
            with runtime.guarded("taking drafts", runtime.tracked.values()):
                _commit(plugin, input_batch, rows, result[1])
        return result

    runner.sample_tokens, runner.sample = with_inner, scored


def live_rows(batch: Any, tracked: Any) -> list[RowOf]:
    """Rows of tracked requests whose prefill is complete, in order of position within each request.

    Draft places of a step that began within the prefill are placeholders, and so is a draft below zero.
    """
    wanted = [number for number, request_id in enumerate(batch.req_ids) if request_id in tracked]
    if not wanted:
        return []
    positions = batch.positions[batch.logits_indices].tolist()
    tokens = batch.input_ids[batch.logits_indices].tolist()
    found = []
    for number in wanted:
        prefill = int(batch.prefill_len_np[number])
        first, end = int(batch.cu_num_logits_np[number]), int(batch.cu_num_logits_np[number + 1])
        for row in range(first, end):
            draft = row > first
            if positions[first] + 1 < prefill + draft or tokens[row] < 0:
                break
            slot = int(batch.idx_mapping_np[number])
            found.append(RowOf(batch.req_ids[number], row, slot, positions[row], tokens[row], draft))
    return found


def _commit(plugin: Installed, batch: Any, rows: list[RowOf], num_sampled: torch.Tensor) -> None:
    """`num_sampled` [requests]: tokens taken this step; row j of a request was right iff j < that."""
    runtime = plugin.runtime
    taken = dict(zip(batch.req_ids, num_sampled.tolist(), strict=False))
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(row.request_id, row.position)
    for request_id, position in first.items():
        one = runtime.tracked.get(request_id)
        if one is not None:
            runtime.commit(request_id, position - len(one.request.prompt_ids) + max(1, taken[request_id]))
    runtime.flush()
