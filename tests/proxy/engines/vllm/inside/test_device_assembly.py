"""Which engines have a device path: asked by configuration, and told why not."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from desist.kernels.choice import interpreting
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.inside.assembly import Installed
from desist.proxy.engines.vllm.inside.device_assembly import device_path_for
from desist.proxy.engines.vllm.inside.device_path import DevicePath
from desist.proxy.engines.vllm.inside.device_probes import DeviceProbes, kernels_of
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots
from desist.proxy.engines.vllm.inside.device_tables import device_tables
from desist.proxy.engines.vllm.inside.evidence import Stream
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring
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


def made(
    *,
    kernels: str = "triton",
    asynchronous: bool = False,
    stream: Stream | None = None,
    score_here: bool = True,
    new_tokens: int = 1,
    profile: Any = PROFILE,
) -> DevicePath | None:
    runtime = Runtime(profile, VOCABULARY, Packing(scorers(rom=True), N_LAYERS), score_here=score_here)
    runtime.stream = stream or Stream()
    config = PluginConfig(profile="qwen3", kernels=kernels)  # type: ignore[arg-type]
    facts: Any = SimpleNamespace(n_layers=N_LAYERS, hidden_size=WIDTH)
    plugin = Installed(config, facts, runtime, "v2", torch.device("cpu"), 0, (1,))
    runner = SimpleNamespace(
        req_states=SimpleNamespace(vocab_size=N_VOCABULARY),
        model_state=SimpleNamespace(num_new_sampled_tokens_per_step=new_tokens),
        max_num_reqs=4,
        num_speculative_steps=2,
    )
    scheduler = SimpleNamespace(async_scheduling=asynchronous)
    return device_path_for(runner, SimpleNamespace(scheduler_config=scheduler), plugin)


needs_interpreter = pytest.mark.skipif(not interpreting(), reason="the kernels do not run on this CPU")


@needs_interpreter
@pytest.mark.parametrize("asynchronous", [False, True])
def test_where_the_kernels_run_the_device_decides(
    asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    with caplog.at_level(logging.INFO):
        assert made(asynchronous=asynchronous) is not None
    assert f"hears of them {int(asynchronous)} steps later" in caplog.text


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_without_a_gpu_nothing_is_changed(kernels: str) -> None:
    assert made(kernels=kernels) is None


@needs_interpreter
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"stream": Stream((1,), "float32")}, "leave the engine"),
        ({"stream": Stream((), None, 1)}, "leave the engine"),
        ({"score_here": False}, "decide is 'proxy'"),
        ({"new_tokens": 4}, "no single next token"),
        ({"profile": replace(PROFILE, think_close="</thought>", handoff_write="</thought>",
                             handoff_extract="</thought>")}, "no token of its own"),
    ],
)  # fmt: skip
def test_what_stands_against_it_is_said(
    values: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    with caplog.at_level(logging.INFO):
        assert made(**values) is None
    assert reason in caplog.text


def path_of(scoring: Scoring) -> tuple[Runtime, DevicePath, DeviceSlots]:
    runtime = Runtime(PROFILE, VOCABULARY, scoring, min_answer_tokens=4)
    slots = DeviceSlots(4, 0, handoff=8, device="cpu")
    tables = device_tables(automaton(), VOCABULARY, "cpu")
    return runtime, DevicePath(runtime, kernels_of("torch"), tables, slots), slots


def test_requests_that_the_device_cannot_control_stay_with_the_host() -> None:
    """Probes that the kernels do not take, a hand-off that a slot has no room for, no prompt to stand on."""
    runtime, path, _ = path_of(Scoring(scorers(rom=False), N_LAYERS, impl="torch"))
    runtime.entered("r", [TOKENS[0], OPEN], 50, xargs("r", lam=0.5))
    path.adopt("r")
    assert not path.requests
    runtime, path, slots = path_of(Packing(scorers(rom=True), N_LAYERS))
    for name, prompt in (("none", []), ("long", [OPEN]), ("fine", [OPEN])):
        runtime.entered(name, prompt, 50, xargs(name, lam=0.5))
    runtime.tracked["long"].handoff = tuple(range(slots.settings.handoff.shape[1] + 1))
    for name in ("none", "long", "fine", "unknown"):
        path.adopt(name)
    assert list(path.requests) == ["fine"]


def test_a_streaming_probe_that_rounds_first_is_the_hosts() -> None:
    rounding = scorers(rom=True)
    card = replace(rounding.rom.card, hidden_dtype="float16")  # type: ignore[union-attr]
    rounding.rom.card = card  # type: ignore[union-attr,misc]
    assert DeviceProbes.of(Packing(rounding, N_LAYERS), 4, 2, "cpu") is None


def test_a_warm_up_changes_nothing() -> None:
    runtime, path, slots = path_of(Packing(scorers(rom=True), N_LAYERS))
    kept = [part.clone() for part in (slots.read.position, slots.decided.words, slots.ring.words)]
    path.warm_up(torch.zeros(1, WIDTH), N_VOCABULARY, [1, 4])
    assert runtime.errors == 0
    for before, after in zip(kept, (slots.read.position, slots.decided.words, slots.ring.words), strict=True):
        assert torch.equal(before, after)


def test_the_kill_switch_reaches_a_request_that_entered_while_another_thread_threw_it() -> None:
    runtime, path, _ = path_of(Packing(scorers(rom=False), N_LAYERS))
    runtime.entered("r", [OPEN], 50, xargs("r", lam=0.5))
    path.adopt("r")
    runtime.limit("shadow")
    assert path.requests["r"].rules.mode == "active"
    path.begin()
    assert path.requests["r"].rules.mode == "shadow"
