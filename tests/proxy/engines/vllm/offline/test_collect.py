"""Collecting through a real vLLM engine against the embedded collection, on the built-in reasoner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from desist.controller import builtin_profile
from desist.data.errors import EngineError
from desist.data.records import read_traces
from desist.data.schema import BoundaryRecord, Sampling, Trace
from desist.probes.features import hidden_dir, read_hidden, token_dir
from desist.proxy.collection.batch_runs import request_seed
from desist.proxy.collection.collect import CollectReport, collect
from desist.proxy.engines.embedded.artefacts import builtin_model
from desist.proxy.engines.embedded.loading import load_model
from desist.proxy.engines.vllm.offline.engine import start_offline
from desist.proxy.engines.vllm.offline.runner import VllmRunner, vllm_runner
from desist.proxy.studies.builtin import builtin_problems, builtin_taps
from tests.fakes.vllm_engine import require_vllm

N = 40
GREEDY = Sampling(0.0, 1.0, None, 160)
TAPS, TOKEN_TAP = builtin_taps(6), 5
ROWS = 16


def run(out: Path, runner: VllmRunner | None, n: int = N, **settings: Any) -> CollectReport:
    chosen: dict[str, Any] = {
        "model": runner.model if runner else load_model(builtin_model(), device="cpu"),
        "profile": builtin_profile(),
        "sampling": GREEDY,
        "out": out,
        "seed": 3,
        "taps": TAPS,
        "keep_tokens_tap": TOKEN_TAP,
        "batch": ROWS,
        "hidden_dtype": "float32",
        "runner": runner,
    }
    return collect(builtin_problems("test", 11, n), **(chosen | settings))


@pytest.fixture(scope="module")
def runner() -> Iterator[VllmRunner]:
    require_vllm()
    with vllm_runner(
        builtin_model(), builtin_profile(), taps=TAPS, token_tap=TOKEN_TAP, max_rows=ROWS
    ) as made:
        yield made


@pytest.fixture(scope="module")
def files(runner: VllmRunner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("traces")
    ours, theirs = folder / "vllm.jsonl", folder / "embedded.jsonl"
    assert run(ours, runner).n_collected == run(theirs, None).n_collected == N
    return ours, theirs


@pytest.fixture(scope="module")
def pairs(files: tuple[Path, Path]) -> list[tuple[Trace, Trace]]:
    """Traces whose tokens both engines made alike (greedy ties may fall otherwise)."""
    ours, theirs = ({trace.trace_id: trace for trace in read_traces(path)} for path in files)
    assert set(ours) == set(theirs)
    both = [(ours[key], theirs[key]) for key in ours]
    same = [pair for pair in both if pair[0].reasoning == pair[1].reasoning]
    assert len(same) >= 0.9 * N
    return same


def plain(record: BoundaryRecord) -> BoundaryRecord:
    return dataclasses.replace(record, forced_confidence=None)


def test_same_tokens_give_the_same_boundaries_and_labels(pairs: list[tuple[Trace, Trace]]) -> None:
    records = [
        (a, b) for mine, other in pairs for a, b in zip(mine.boundaries, other.boundaries, strict=True)
    ]
    assert len(records) > N
    alike = [pair for pair in records if pair[0].forced_answer == pair[1].forced_answer]
    assert len(alike) >= 0.95 * len(records)
    for a, b in alike:
        assert plain(a) == plain(b)
        assert a.forced_confidence == pytest.approx(b.forced_confidence, rel=1e-4)
    for mine, other in pairs:
        assert (mine.sampling, mine.provenance) == (other.sampling, other.provenance)
        if mine.answer == other.answer:
            assert mine.n_answer_tokens == other.n_answer_tokens
            assert mine.full_correct == other.full_correct
        assert mine.n_reasoning_tokens == other.n_reasoning_tokens


def test_same_tokens_have_the_same_hidden_states(
    files: tuple[Path, Path], pairs: list[tuple[Trace, Trace]]
) -> None:
    for folder, taps in ((hidden_dir, TAPS), (token_dir, (TOKEN_TAP,))):
        mine, other = (read_hidden(folder(path)) for path in files)
        assert mine.taps == other.taps == taps
        for trace, _ in pairs:
            ours, theirs = mine.of_trace(trace.trace_id), other.of_trace(trace.trace_id)
            assert folder is hidden_dir or len(ours) == trace.n_reasoning_tokens
            for a, b in zip(np.split(ours, len(taps), 1), np.split(theirs, len(taps), 1), strict=True):
                # Inner layers of this model hold numbers of up to a thousand: two units in the last place.
                most = max(1e-4, 1e-6 * float(np.abs(b).max(initial=0.0)))
                assert float(np.abs(a - b).max(initial=0.0)) <= most


def test_a_truncated_trace_has_the_state_of_its_last_token(runner: VllmRunner, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    report = run(out, runner, 6, sampling=Sampling(0.8, 0.95, None, 40))
    assert report.n_truncated == 6
    rows = read_hidden(token_dir(out))
    for trace in read_traces(out):
        assert trace.n_reasoning_tokens == len(rows.of_trace(trace.trace_id)) == 40
        assert trace.sampling.seed == request_seed(3, trace.problem_id)


def test_a_killed_collection_goes_on_and_floors_are_measured(runner: VllmRunner, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 4:
            raise Killed

    out = tmp_path / "t.jsonl"
    with pytest.raises(Killed):
        run(out, runner, 8, progress=kill, commit=2)
    report = run(out, runner, 8, floors=3)
    assert (report.n_traces, report.n_collected) == (8, 4)
    assert report.floors is not None
    assert report.floors.greedy_run.k == 0  # the sampled runs are greedy here too
    assert report.floors.second_run.n == 3


def test_start_refusals_come_before_anything_is_loaded(runner: VllmRunner) -> None:
    with pytest.raises(EngineError, match="--max-model-lenn=5"):
        start_offline(builtin_model(), arguments=["--max-model-lenn=5"])
    with pytest.raises(EngineError, match="vLLM does not start"):
        start_offline(builtin_model(), arguments=["--max-model-len=900000"])
