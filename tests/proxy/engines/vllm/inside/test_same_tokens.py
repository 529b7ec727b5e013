"""What the plugin must not change, and where its stops must lie: no plugin, embedded engine, replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from desist.controller import Control, Policy, replay_trace
from desist.proxy.collection.batch_runs import JobMaker, drive
from desist.proxy.engines.embedded.job import Done
from desist.proxy.engines.embedded.runner import Runner
from desist.proxy.engines.vllm.wire import Closed
from desist.proxy.studies.builtin import Builtin, builtin_problems, load_builtin
from desist.proxy.studies.scored import full_traces
from tests.fakes.vllm_engine import OfflineEngine, plugin_config, prompts_of, require_vllm, xargs

N = 200
LAM = 0.9


@pytest.fixture(scope="module")
def without_plugin() -> list[tuple[int, ...]]:
    """What a vLLM without the plugin generates. Its end tears down what engines of a process share."""
    require_vllm()
    unhooked = OfflineEngine.start(None, max_num_seqs=16)
    try:
        return unhooked.run(prompts_of(builtin_problems("test", 2, 64)), [greedy(None)] * 64)
    finally:
        unhooked.close()


@pytest.fixture(scope="module")
def engine(without_plugin: Any) -> Iterator[OfflineEngine]:
    engine = OfflineEngine.start(plugin_config(), max_num_seqs=16)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def builtin() -> Builtin:
    return load_builtin()


def greedy(key: str | None, mode: str = "shadow") -> Any:
    from vllm import SamplingParams

    extra = None if key is None else xargs(key, mode=mode, lam=LAM, min_answer_tokens=64)
    return SamplingParams(temperature=0.0, max_tokens=512, extra_args=extra)


def test_R48_no_plugin_plugin_off_and_shadow_generate_the_same_tokens(
    engine: OfflineEngine, without_plugin: Any
) -> None:
    prompts = prompts_of(builtin_problems("test", 2, 64))
    off = engine.run(prompts, [greedy(None)] * 64)
    assert engine.events == []
    shadow = engine.run(prompts, [greedy(f"k{n}") for n in range(64)])
    assert without_plugin == off == shadow
    assert sum(event.shadow is not None for event in engine.told(Closed)) > 40


def test_stops_are_the_embedded_engines_and_the_replays(engine: OfflineEngine, builtin: Builtin) -> None:
    problems = builtin_problems("test", 4, N)
    prompts = prompts_of(problems)
    engine.events.clear()
    generated = engine.run(prompts, [greedy(f"k{n}", "active") for n in range(N)])
    stop = {event.identity.key: event.decision for event in engine.told(Closed)}

    sampling = replace(builtin.sampling, temperature=0.0, top_p=1.0)
    control = Control("active", Policy(lam=LAM))
    maker = JobMaker(builtin.model, builtin.profile, sampling, min_answer_tokens=64)
    runner = Runner(builtin.model, max_rows=16, probe=builtin.required_probe(), rom=builtin.rom)
    embedded: dict[Any, Done] = {}
    jobs = (maker.job(n, prompt, control, 0, greedy=True) for n, prompt in enumerate(prompts))
    for event in drive(runner, jobs):
        if isinstance(event, Done):
            embedded[event.key] = event

    traces = full_traces(builtin, problems, sampling=sampling, seed=1)
    handoff = builtin.handoff_tokens("write")
    same = 0
    for number, (prompt, tokens) in enumerate(zip(prompts, generated, strict=True)):
        ours, theirs = stop[f"k{number}"], embedded[number]
        if tokens != theirs.token_ids:
            gap = _gap(builtin, prompt, tokens, theirs.token_ids)
            print(f"problem {number}: tokens differ, logit gap at the first difference {gap:.2e}")
            assert gap < 1e-3
            continue
        same += 1
        index = ours.index if ours else None
        assert index == (theirs.decision.index if theirs.decision else None)
        replayed = replay_trace(
            traces[number], control, max_tokens=512, min_answer_tokens=64, handoff_tokens=handoff
        )
        assert index == replayed.stop_index
        for event in engine.told(Closed, f"k{number}"):
            assert event.stop_reason == str(theirs.stop_reason)
            assert event.reasoning_tokens == theirs.usage.reasoning_tokens
    print(f"{same} of {N} token sequences are equal")
    assert same >= 195


def _gap(builtin: Builtin, prompt: Any, ours: Any, theirs: Any) -> float:
    """The logit difference of the two tokens at the first place where two generations differ."""
    place = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    with torch.inference_mode():
        logits = builtin.model.network(torch.tensor([[*prompt, *ours[:place]]])).logits[0, -1]
    return float((logits[ours[place]] - logits[theirs[place]]).abs())
