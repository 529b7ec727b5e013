"""A step on the device: nothing waits, rows are told apart without asking, parts of logits are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from desist.kernels.boundary_score import MAX_ROWS, Found
from desist.kernels.decide_and_force import Decided
from desist.proxy.engines.vllm.inside import rows_v2
from desist.proxy.engines.vllm.inside.assembly import Installed, forget, remember
from desist.proxy.engines.vllm.inside.device_path import DevicePath
from desist.proxy.engines.vllm.inside.device_probes import Kernels
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots
from desist.proxy.engines.vllm.inside.device_step import launches, live
from desist.proxy.engines.vllm.inside.device_tables import device_tables
from desist.proxy.engines.vllm.inside.runtime import Runtime
from tests.fakes.vllm_engine import xargs
from tests.proxy.engines.vllm.inside.v2_requests import (
    N_LAYERS,
    N_VOCABULARY,
    OPEN,
    PROFILE,
    TOKENS,
    VOCABULARY,
    WIDTH,
    scorers,
)
from tests.proxy.engines.vllm.inside.v2_world import Packing, automaton

META = torch.device("meta")  # its tensors have no values: whoever asks for one gets an error


def meta(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=META)


def found(count: int) -> Found:
    return Found(meta(count, torch.uint8), meta(count), meta(count), meta(count), meta(1))


def empty_kernels(forced: list[torch.Size]) -> Kernels:
    """Ops that give tensors without values; `forced` gets the shapes of the logits that were changed."""
    return Kernels(
        find_boundaries=None,
        boundary_score=lambda taps, at, rows, *_: (
            *found(len(rows.slot)),
            meta(len(rows.slot), torch.float32),
        ),
        stream_score=lambda hidden, at, rows, *_: meta(len(rows.slot), torch.float32),
        decide=lambda rows, *_: Decided(
            meta(len(rows.slot), torch.uint8),
            meta(len(rows.slot), torch.float64),
            meta(len(rows.slot)),
            meta(len(rows.slot), torch.bool),
        ),
        force=lambda logits, decided, rows, settings: forced.append(logits.shape),
    )


def runner_and_batch(on_device: int) -> tuple[Any, Any, Installed, list[torch.Size]]:
    """A V2 runner with two requests of two rows each, of which the first `on_device` are the device's."""
    forced: list[torch.Size] = []
    runtime = Runtime(PROFILE, VOCABULARY, Packing(scorers(rom=True), N_LAYERS), min_answer_tokens=4)
    facts: Any = SimpleNamespace(n_layers=N_LAYERS)
    config: Any = None
    plugin = Installed(config, facts, runtime, "v2", META, 0, (1,))
    slots = DeviceSlots(4, 1, handoff=16, device=META)
    plugin.path = DevicePath(
        runtime, empty_kernels(forced), device_tables(automaton(), VOCABULARY, META), slots
    )
    for name in ("a", "b"):
        runtime.entered(name, [TOKENS[0], OPEN], 50, xargs(name, mode="active", lam=0.5, scorer="rom"))
    for name in ("a", "b")[:on_device]:
        plugin.path.adopt(name)
    batch = SimpleNamespace(
        req_ids=["a", "b"],
        idx_mapping_np=np.array([3, 1]),
        cu_num_logits_np=np.array([0, 2, 4], np.int32),
        is_prefilling_np=np.array([False, False]),
        prefill_len_np=np.array([2, 2]),
        positions=meta(4, torch.int64),
        input_ids=meta(4),
        logits_indices=meta(4, torch.int64),
        expanded_idx_mapping=meta(4, torch.int64),
        expanded_local_pos=meta(4),
    )
    runner = SimpleNamespace(
        sample_tokens=None,
        execute_model_state=SimpleNamespace(aux_hidden_states=[torch.empty(9, WIDTH, device=META)]),
        sampler=SimpleNamespace(needs_logits_processing=np.zeros(4, bool)),
    )
    return runner, batch, plugin, forced


@pytest.mark.parametrize(("on_device", "errors"), [(2, 0), (1, 1)])
def test_nothing_waits_for_the_device_before_sampling(on_device: int, errors: int) -> None:
    """One request that is left to the host is enough to have its rows read: so the check can fail."""
    runner, batch, plugin, forced = runner_and_batch(on_device)
    reached: list[int] = []

    def sample(hidden: torch.Tensor, batch: Any) -> Any:
        reached.append(plugin.runtime.errors)
        assert runner.sampler.needs_logits_processing.tolist() == [False, on_device == 2, False, True]
        context = SimpleNamespace(
            expanded_idx_mapping=batch.expanded_idx_mapping,
            expanded_local_pos=batch.expanded_local_pos,
            pos=batch.positions,
        )
        path = plugin.path
        assert path is not None
        path.force(torch.empty(4, N_VOCABULARY, device=META), context)
        for part in (slice(0, 2), slice(2, 4)):
            path.force(
                torch.empty(2, N_VOCABULARY, device=META),
                SimpleNamespace(**{name: value[part] for name, value in vars(context).items()}),
            )
        return SimpleNamespace(sampled_token_ids=meta(4, torch.int64).view(2, 2)), meta(2), meta(2)

    runner.sample = sample
    runner.sample_tokens = lambda: runner.sample(torch.empty(9, WIDTH, device=META), batch)
    remember(runner, plugin)
    try:
        rows_v2.hook_sampling(runner, runner)
        runner.sample_tokens()
    finally:
        forget(runner)
    assert reached == [errors]
    assert forced == [(4, N_VOCABULARY), (2, N_VOCABULARY), (2, N_VOCABULARY)]
    assert not runner.sampler.needs_logits_processing.any()
    # Only after the sampler is anything copied to the host, which a tensor without values does not allow.
    assert plugin.runtime.errors == errors + 1


def batch_of(computed: int, fed: int, drafts: int, prefill: int) -> Any:
    return SimpleNamespace(
        cu_num_logits_np=np.array([0, 1 + drafts]),
        is_prefilling_np=np.array([computed < prefill]),
        prefill_len_np=np.array([prefill]),
        num_scheduled_tokens=np.array([fed + drafts]),
        num_draft_tokens_per_req=np.array([drafts]) if drafts else None,
        num_computed_prefill_tokens_np=np.array([min(computed, prefill)]),
    )


@pytest.mark.parametrize(
    ("computed", "fed", "drafts", "prefill", "rows"),
    [
        (9, 1, 0, 9, 1),  # the first generated token is read
        (12, 1, 2, 9, 3),
        (0, 9, 0, 9, 0),  # the prompt's last token is no generated one
        (4, 3, 0, 9, 0),
        (0, 12, 0, 12, 1),  # after a preemption: three tokens had been generated
        (0, 11, 0, 12, 0),
        (11, 1, 2, 12, 1),  # draft places of a step that began in the prefill are placeholders
    ],
)
def test_live_rows_are_known_from_the_schedule(
    computed: int, fed: int, drafts: int, prefill: int, rows: int
) -> None:
    assert live(batch_of(computed, fed, drafts, prefill), 0, 9) == rows


def test_more_rows_than_one_launch_takes_are_cut_between_requests() -> None:
    ends = np.cumsum([0, *[3] * 700])
    parts = list(launches(ends))
    assert parts[0] == (0, MAX_ROWS // 3 * 3)
    assert parts[-1][1] == 2100
    assert all(low % 3 == 0 and high - low <= MAX_ROWS for low, high in parts)
    assert [low for low, _ in parts[1:]] == [high for _, high in parts[:-1]]
    assert list(launches(np.array([0, 5]))) == [(0, 5)]
