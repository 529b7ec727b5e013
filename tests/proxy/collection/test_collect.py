"""Collecting: traces, hidden states, resuming, floors, and that live equals replay."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from desist.controller import Control, Policy, replay_trace
from desist.data.answers import extract_answer
from desist.data.errors import ArtifactMismatch
from desist.data.judging import answers_equal
from desist.data.records import read_traces
from desist.data.schema import Sampling, Trace
from desist.probes.base import ProbeCard
from desist.probes.disk import hidden_disk
from desist.probes.features import hidden_dir, read_hidden, token_dir
from desist.proxy.collection.batch_runs import request_seed, run_batch
from desist.proxy.collection.collect import CollectReport, collect, trace_id_of
from tests.fakes.tiny_model import PROFILE, WIDTH, problems, tiny_model

MODEL = tiny_model()
SAMPLING = Sampling(0.9, 0.98, None, 80)
TAPS = (1, 3)


class Tap:
    """Scores a boundary from the first number of tap 3, rounded as the stored states are."""

    card = ProbeCard("logistic", (3,), WIDTH, "consistent")

    def score(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, 0].half().float().sigmoid()


def run(out: Path, n: int = 6, **settings: Any) -> CollectReport:
    chosen: dict[str, Any] = {
        "model": MODEL,
        "profile": PROFILE,
        "sampling": SAMPLING,
        "out": out,
        "seed": 5,
        "taps": TAPS,
        "keep_tokens_tap": 2,
        "batch": 8,
    }
    return collect(problems(n), **(chosen | settings))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trace], CollectReport]:
    out = tmp_path_factory.mktemp("traces") / "t.jsonl"
    report = run(out, 12)
    return out, list(read_traces(out)), report


def test_every_problem_has_a_trace_with_labels(
    collected: tuple[Path, list[Trace], CollectReport],
) -> None:
    _, traces, report = collected
    assert {trace.trace_id for trace in traces} == {trace_id_of(5, p.problem_id) for p in problems(12)}
    assert report.n_traces == report.n_collected == 12
    assert report.n_boundaries == sum(len(trace.boundaries) for trace in traces) > 12
    for trace in traces:
        assert trace.sampling.seed == request_seed(5, trace.problem_id)
        assert trace.provenance["answer_mode"] == "write"
        assert trace.n_reasoning_tokens + trace.n_answer_tokens <= 80
        assert [record.index for record in trace.boundaries] == list(range(len(trace.boundaries)))
        answer = extract_answer(trace.answer) if trace.answer else None
        for record in trace.boundaries:
            assert record.position <= trace.n_reasoning_tokens
            assert record.char <= len(trace.reasoning)
            assert record.forced_answer is not None
            forced = extract_answer(record.forced_answer) if record.forced_answer else None
            assert record.consistent == answers_equal(forced, answer)
            assert record.correct == answers_equal(forced, trace.gold)
            assert record.forced_tokens is not None
            assert record.forced_tokens > len(MODEL.vocabulary.encode(PROFILE.handoff_write))


def test_hidden_states_lie_beside_the_traces(
    collected: tuple[Path, list[Trace], CollectReport],
) -> None:
    out, traces, _ = collected
    rows, tokens = read_hidden(hidden_dir(out)), read_hidden(token_dir(out))
    assert (rows.taps, rows.dim, tokens.taps) == (TAPS, WIDTH, (2,))
    for trace in traces:
        indices = [record.index for record in trace.boundaries]
        assert rows.of_trace(trace.trace_id, indices).shape == (len(indices), 2 * WIDTH)
        assert len(tokens.of_trace(trace.trace_id)) == trace.n_reasoning_tokens


def test_R54_the_disk_that_was_told_is_what_is_written(
    collected: tuple[Path, list[Trace], CollectReport],
) -> None:
    """Rows x layers x width x bytes, to the byte; and no trace is longer than what was told as the most."""
    out, traces, _ = collected
    disk = hidden_disk(
        12, taps=TAPS, token_tap=2, hidden_size=WIDTH, max_tokens=SAMPLING.max_tokens, every_n=PROFILE.every_n
    )
    written = {
        folder: sum(map(payload, folder.glob("shard-*"))) for folder in (hidden_dir(out), token_dir(out))
    }
    n_rows = sum(len(trace.boundaries) for trace in traces)
    n_tokens = sum(trace.n_reasoning_tokens for trace in traces)
    assert disk.boundary_row == 2 * WIDTH * 2 + 4
    assert written[hidden_dir(out)] == n_rows * disk.boundary_row <= (disk.boundary_bytes or 0)
    assert written[token_dir(out)] == n_tokens * disk.token_row <= (disk.token_bytes or 0)


def payload(shard: Path) -> int:
    """Bytes of a safetensors file without its header."""
    head = int.from_bytes(shard.read_bytes()[:8], "little")
    return shard.stat().st_size - 8 - head


def test_live_runs_with_the_same_seed_are_the_collected_traces(
    collected: tuple[Path, list[Trace], CollectReport],
) -> None:
    _, traces, _ = collected
    by_problem = {trace.problem_id: trace for trace in traces}
    live = run_batch(
        problems(12), Control("off"), model=MODEL, profile=PROFILE, sampling=SAMPLING, seed=5, batch=3
    )
    for result in live.results:
        trace = by_problem[result.problem_id]
        assert (result.reasoning, result.content) == (trace.reasoning, trace.answer)
        assert result.n_tokens == trace.n_reasoning_tokens + trace.n_answer_tokens
    assert live.wall_s > 0


@pytest.mark.parametrize("policy", [Policy(lam=0.5), Policy(lam=0.4, patience=2, warmup_tokens=9)])
def test_R56_live_stops_where_the_replay_stops(
    collected: tuple[Path, list[Trace], CollectReport], policy: Policy
) -> None:
    out, traces, _ = collected
    hidden = read_hidden(hidden_dir(out))
    control = Control("active", policy)
    live = run_batch(
        problems(12), control, model=MODEL, profile=PROFILE, sampling=SAMPLING, seed=5, probe=Tap()
    )
    by_problem = {result.problem_id: result for result in live.results}
    handoff = len(MODEL.vocabulary.encode(PROFILE.handoff_write))
    stops = set()
    for trace in traces:
        columns = hidden.columns((3,))
        rows = hidden.of_trace(trace.trace_id)[:, columns]
        scores = Tap().score(torch.from_numpy(rows)).tolist()
        records = tuple(
            dataclasses.replace(record, scores={"probe": score})
            for record, score in zip(trace.boundaries, scores, strict=True)
        )
        scored = dataclasses.replace(trace, boundaries=records)
        replayed = replay_trace(scored, control, handoff_tokens=handoff)
        result = by_problem[trace.problem_id]
        if replayed.stop_index is not None or replayed.decision is None:
            assert result.stop_index == replayed.stop_index
        seen = {s.boundary.index: s.scores["probe"] for s in result.boundaries}
        for index, score in seen.items():
            assert score == scores[index]
        stops.add(replayed.stop_index)
    assert len(stops) > 1


def test_a_killed_collection_goes_on(tmp_path: Path, collected: tuple[Path, list[Trace], Any]) -> None:
    """Killed after some traces were committed, then run again: every trace once, the same as in one go."""

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 5:
            raise Killed

    out = tmp_path / "t.jsonl"
    with pytest.raises(Killed):
        run(out, 12, progress=kill, commit=2)
    assert not out.exists()
    seen: list[tuple[int, int]] = []
    report = run(out, 12, progress=lambda *count: seen.append(count), commit=2)
    assert (report.n_traces, report.n_collected) == (12, 8)
    assert seen[-1] == (12, 12)
    again = {trace.trace_id: trace for trace in read_traces(out)}
    first = {trace.trace_id: trace for trace in collected[1]}
    assert again == first
    rows, whole = read_hidden(hidden_dir(out)), read_hidden(hidden_dir(collected[0]))
    for trace_id in first:
        np.testing.assert_array_equal(rows.of_trace(trace_id), whole.of_trace(trace_id))
    assert run(out, 12).n_collected == 0
    with pytest.raises(ArtifactMismatch):
        run(out, 13, answer="extract")


def test_extract_mode_and_other_formats(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl.gz"
    run(out, 3, answer="extract", taps=(), keep_tokens_tap=None)
    assert not hidden_dir(out).exists()
    for trace in read_traces(out):
        assert trace.provenance["answer_mode"] == "extract"
        for record in trace.boundaries:
            assert (record.forced_answer or "").startswith(PROFILE.answer_opening("extract"))


def test_floors_are_measured(tmp_path: Path) -> None:
    report = run(tmp_path / "t.jsonl", 3, taps=(), keep_tokens_tap=None, floors=2)
    assert report.floors is not None
    assert report.floors.n_problems == report.floors.second_run.n == report.floors.greedy_run.n == 2
    assert report.floors.forced_greedy.n > 0
    assert report.floors.accuracy_sampled.n == 2
    assert 0 <= report.floors.resampled.k <= report.floors.resampled.n <= 2
