"""The check of test_capture.py on a second real model: SmolLM2-135M, 30 layers, a tokenizer of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from desist.proxy.engines.model import read_model
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.smollm2 import require_smollm2, smollm2
from tests.fakes.vllm_engine import TIGHT, OfflineEngine, complete, require_vllm, xargs
from tests.fakes.vllm_states import Recorder, tolerance, transformers_states

pytestmark = pytest.mark.extended

#: The first layer's output, layers on the way, the last layer's input, the last layer after the final norm.
TAPS = (1, 8, 15, 22, 29, 30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Iterator[Path]:
    require_vllm()
    file = require_smollm2()
    folder = smollm2(file, tmp_path_factory.mktemp("smollm2"))
    yield folder
    shutil.rmtree(folder)  # pytest would keep 540 MB of each of its last three runs


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[OfflineEngine]:
    config = PluginConfig(
        profile="qwen3", probe=None, rom=None, taps=TAPS, stream="float32", events=None, commands=None
    )
    engine = OfflineEngine.start(config, model=model, **TIGHT)
    engine.installed.runtime = Recorder(engine.runtime, TAPS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def run(engine: OfflineEngine, model: Path) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """16 prompts of 20 to 200 tokens, conversations and raw texts; the last 8 are the first 8 once more."""
    from vllm import SamplingParams

    facts = read_model(model, dtype="float32", weights=False)
    problems = [problem.text for problem in builtin_problems("test", 3, 4)]
    texts = [" ".join(problems[: n + 1]) for n in range(4)]
    chats = [facts.chat_ids([{"role": "user", "content": text}]) for text in texts]
    prompts = [*chats, *map(facts.text_ids, reversed(problems))] * 2
    params = [
        SamplingParams(
            temperature=0.8,
            top_p=0.95,
            max_tokens=30 + 5 * n,
            ignore_eos=True,
            extra_args=xargs(f"r{n}", mode="shadow", lam=2.0),
        )
        for n in range(16)
    ]
    return prompts, engine.run(prompts, params)


@pytest.fixture(scope="module")
def sequences(run: Any) -> list[tuple[int, ...]]:
    return [(*prompt, *tokens) for prompt, tokens in zip(*run, strict=True)]


@pytest.fixture(scope="module")
def expected(model: Path, sequences: Any) -> list[np.ndarray]:
    return transformers_states(model, sequences, TAPS)


@pytest.fixture(scope="module")
def exact(model: Path, sequences: Any) -> list[np.ndarray]:
    return transformers_states(model, sequences, TAPS, torch.float64)


def test_every_row_equals_transformers_at_every_tap(
    engine: Any, run: Any, sequences: Any, expected: Any, exact: Any
) -> None:
    """The limit is what float32 costs, which this model says, not a fixed 1e-4.

    A few tokens have channels near 600 that shrink to 100 within ten layers and leave their rounding behind:
    there transformers in float32 is up to 7e-4 from float64, and vLLM, whose kernels round in another order,
    1.6e-3 from transformers. At the last tap two rows of 1,066 are beyond 1e-4. The reading adds nothing: the
    twelve rows furthest apart at the last tap were, bit for bit, what vLLM's norm returned for the same text
    alone, in one piece, without cache or preemption.
    """
    seen = engine.installed.runtime.seen
    prompts, _ = run
    got, right, truth = [], [], []
    for number, ids in enumerate(sequences):
        # The first row has read the prompt's last token; the last token of all is never read.
        places = range(len(prompts[number]) - 1, len(ids) - 1)
        rows = [seen[f"r{number}", place] for place in places]
        assert [token for token, _ in rows] == [ids[place] for place in places]
        got.append(np.stack([state.reshape(len(TAPS), -1) for _, state in rows], axis=1))
        right.append(expected[number][:, places.start : places.stop])
        truth.append(exact[number][:, places.start : places.stop])
    states = np.concatenate(right, axis=1)
    apart = np.abs(np.concatenate(got, axis=1) - states).max(axis=2)
    float32 = np.abs(states - np.concatenate(truth, axis=1)).max(axis=2)
    within = (apart <= tolerance(states)).mean(axis=1)
    for place, tap in enumerate(TAPS):
        print(
            f"tap {tap}: largest difference {apart[place].max():.1e}, median {np.median(apart[place]):.1e}, "
            f"transformers' float32 from its float64 {float32[place].max():.1e}, "
            f"largest value {np.abs(states[place]).max():.4g}, rows within tolerance {within[place]:.2%}"
        )
    assert (apart.max(axis=1) <= np.maximum(1e-4, 4 * float32.max(axis=1))).all()
    assert (within >= 0.97).all()
    assert (np.median(apart, axis=1) <= tolerance(states)[:, 0] / 2).all()


def test_vllm_did_to_the_rows_what_it_can_and_no_position_was_read_twice(engine: Any, run: Any) -> None:
    prompts, generated = run
    for name in ("vllm:num_preemptions", "vllm:prefix_cache_hits"):
        print(name, engine.metric(name))
    print("prompt lengths", *map(len, prompts))
    assert engine.metric("vllm:num_preemptions") >= 1
    assert engine.metric("vllm:prefix_cache_hits") >= TIGHT["block_size"]
    assert max(map(len, prompts)) > TIGHT["max_num_batched_tokens"]  # so a prompt was read in parts
    assert set(engine.installed.runtime.times.values()) == {1}
    assert len(engine.installed.runtime.times) == sum(map(len, generated))


def test_every_request_tells_its_events_exactly_once_and_leaves_nothing(engine: Any, run: Any) -> None:
    assert complete(engine.events)
    assert len({event.identity for event in engine.events}) == 16
    assert not engine.runtime.tracked
    assert not engine.runtime.errors
