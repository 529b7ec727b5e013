"""Hidden states read inside vLLM against transformers', while vLLM does everything it can to rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.vllm_engine import (
    MODEL,
    TIGHT,
    OfflineEngine,
    Scored,
    complete,
    plugin_config,
    prompts_of,
    require_vllm,
    xargs,
)
from tests.fakes.vllm_states import ALL_TAPS, Recorder, random_model, tolerance, transformers_states


@pytest.fixture(scope="module", params=["random", "builtin"])
def model(request: Any, tmp_path_factory: Any) -> Path:
    return MODEL if request.param == "builtin" else random_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[OfflineEngine]:
    require_vllm()
    probes = {} if model == MODEL else {"probe": None, "rom": None}
    engine = OfflineEngine.start(
        plugin_config(taps=ALL_TAPS, stream="float32", **probes), model=model, **TIGHT
    )
    engine.installed.runtime = Recorder(engine.runtime)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def run(engine: OfflineEngine) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """16 prompts of mixed length, some twice (for the prefix cache), some with a long text before."""
    from vllm import SamplingParams

    prompts = prompts_of(builtin_problems("test", 3, 8))
    long = [prompts[n] if n % 2 else (*prompts[(n + 1) % 8][:60], *prompts[n]) for n in range(8)]
    prompts = [*long, *prompts]
    params = [
        SamplingParams(
            temperature=0.8,
            top_p=0.95,
            max_tokens=120,
            extra_args=xargs(f"r{n}", mode="shadow", lam=2.0),
        )
        for n in range(16)
    ]
    return prompts, engine.run(prompts, params)


@pytest.fixture(scope="module")
def expected(model: Path, run: Any) -> list[np.ndarray]:
    return transformers_states(model, [(*prompt, *tokens) for prompt, tokens in zip(*run, strict=True)])


def test_R47_R49_R51_every_row_equals_transformers_at_every_tap(
    engine: Any, model: Path, run: Any, expected: Any
) -> None:
    seen = engine.installed.runtime.seen
    worst = np.zeros(len(ALL_TAPS))
    for number, (prompt, tokens) in enumerate(zip(*run, strict=True)):
        ids = (*prompt, *tokens)
        for position in range(len(prompt) - 1, len(ids) - 1):
            token, state = seen[f"r{number}", position]
            assert token == ids[position]
            apart = np.abs(state.reshape(len(ALL_TAPS), -1) - expected[number][:, position])
            worst = np.maximum(worst, apart.max(axis=1))
            assert (apart <= tolerance(expected[number])).all()
    print("largest difference by tap:", worst)
    assert worst[-1] <= 1e-4
    if model != MODEL:
        assert worst.max() <= 1e-4


def test_R47_R49_vllm_preempted_and_no_position_was_read_twice(engine: Any, run: Any) -> None:
    assert engine.metric("vllm:num_preemptions") >= 1
    _, generated = run
    assert set(engine.installed.runtime.times.values()) == {1}
    # The first row has read the prompt's last token; the last token of all is never read.
    assert len(engine.installed.runtime.times) == sum(map(len, generated))


def test_R53_streamed_states_are_those_of_the_boundaries_rows(
    engine: Any, model: Path, run: Any, expected: Any
) -> None:
    if model != MODEL:
        pytest.skip("random weights write no boundaries")
    prompts, _ = run
    boundaries = engine.told(Scored)
    assert len(boundaries) > 30
    for event in boundaries:
        number = int(event.identity.key[1:])
        state = np.frombuffer(event.hidden, np.float32).reshape(len(ALL_TAPS), -1)
        place = len(prompts[number]) + event.tokens - 1
        assert (np.abs(state - expected[number][:, place]) <= tolerance(expected[number])).all()
        assert set(event.scores) == {"probe", "rom"}


def test_every_request_tells_its_events_exactly_once_and_leaves_nothing(engine: Any, run: Any) -> None:
    assert complete(engine.events)
    assert len({event.identity for event in engine.events}) == 16
    assert not engine.runtime.tracked
    assert not engine.runtime.errors
