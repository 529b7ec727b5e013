"""The vLLM runner on a stand-in engine: the records of the embedded collection, lost events, refusals."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from desist.controller import Control
from desist.data.errors import EngineError
from desist.data.records import read_traces
from desist.data.schema import Sampling, Trace
from desist.probes.features import hidden_dir, read_hidden, token_dir
from desist.proxy.collection.batch_runs import JobMaker
from desist.proxy.collection.collect import CollectReport, collect
from desist.proxy.engines.embedded.job import Done
from desist.proxy.engines.vllm.offline.runner import VllmRunner
from desist.proxy.engines.vllm.wire import Closed, Event, Scored
from tests.fakes.tiny_model import PROFILE, WIDTH, problems, tiny_model
from tests.fakes.vllm_offline import TinyVllm

TAPS, TOKEN_TAP = (1, 3), 2
N = 4


def runner_on(engine: TinyVllm, rows: int = 8) -> VllmRunner:
    return VllmRunner(engine, max_rows=rows, taps=engine.taps, token_tap=engine.token_tap)


def run(out: Path, engine: TinyVllm | None, n: int = N, **settings: Any) -> CollectReport:
    """A collection with greedy tokens, so that both engines make the same ones."""
    runner = None if engine is None else runner_on(engine)
    chosen: dict[str, Any] = {
        "model": tiny_model() if runner is None else runner.model,
        "profile": PROFILE,
        "sampling": Sampling(0.0, 1.0, None, 60),
        "out": out,
        "seed": 5,
        "taps": TAPS,
        "keep_tokens_tap": TOKEN_TAP,
        "batch": 8,
        "hidden_dtype": "float32",
        "runner": runner,
    }
    return collect(problems(n), **(chosen | settings))


def whole() -> TinyVllm:
    return TinyVllm(TAPS, TOKEN_TAP)


def without_confidence(trace: Trace) -> Trace:
    plain = (dataclasses.replace(record, forced_confidence=None) for record in trace.boundaries)
    return dataclasses.replace(trace, boundaries=tuple(plain))


@pytest.mark.parametrize("answer", ["write", "extract"])
def test_both_engines_write_the_same_records(tmp_path: Path, answer: str) -> None:
    engine = whole()
    ours, theirs = tmp_path / "vllm.jsonl", tmp_path / "embedded.jsonl"
    report = run(ours, engine, answer=answer)
    expected = run(theirs, None, answer=answer)
    assert dataclasses.replace(report, out=theirs) == expected
    assert report.n_truncated > 0  # the token after the last one kept is asked for, and left out
    found = {trace.trace_id: trace for trace in read_traces(ours)}
    for trace in read_traces(theirs):
        mine = found[trace.trace_id]
        assert without_confidence(mine) == without_confidence(trace)
        for a, b in zip(mine.boundaries, trace.boundaries, strict=True):
            assert a.forced_confidence == pytest.approx(b.forced_confidence, rel=1e-4)
        for folder in (hidden_dir, token_dir):
            a, b = read_hidden(folder(ours)), read_hidden(folder(theirs))
            np.testing.assert_allclose(
                a.of_trace(trace.trace_id), b.of_trace(trace.trace_id), rtol=1e-4, atol=1e-4
            )
    assert len(read_hidden(token_dir(ours)).of_trace(trace.trace_id)) == trace.n_reasoning_tokens
    assert engine.widest > 4  # the batch is kept full


def test_sampled_runs_differ_by_their_seeds(tmp_path: Path) -> None:
    engine = whole()
    run(tmp_path / "t.jsonl", engine, sampling=Sampling(0.9, 0.98, None, 40))
    full = [ask for ask in engine.asked if ask.xargs]
    forced = [ask for ask in engine.asked if not ask.xargs]
    assert len(full) == N
    assert len({ask.seed for ask in engine.asked}) == len(engine.asked)
    opened = tiny_model().vocabulary.special_id(PROFILE.think_open)
    assert {(ask.measured, ask.locked) for ask in full} == {(False, None)}
    assert {(ask.measured, ask.locked) for ask in forced} == {(True, opened)}
    handoff = tiny_model().vocabulary.encode(PROFILE.handoff_write)
    assert all(ask.prompt_ids[-len(handoff) :] == handoff for ask in forced)


def test_an_answer_form_that_is_complete_ends_its_request() -> None:
    engine = whole()
    runner = runner_on(engine)
    maker = JobMaker(runner.model, PROFILE, Sampling(2.0, 1.0, None, 200))
    prompt = maker.prompt("What is 1 + 4?")
    for number in range(12):
        control = Control("off", answer="extract")
        runner.add(maker.job(number, prompt, control, number, prefix=prompt))
    done = []
    while runner.busy:
        done += [event for event in runner.step() if isinstance(event, Done)]
    ended = [each for each in done if each.content.endswith("}")]
    assert len(done) == 12
    assert engine.aborted == len(ended) > 0
    for each in ended:
        assert each.finish_reason == "stop"
        assert each.content.startswith(PROFILE.answer_opening("extract"))
        assert each.usage.completion_tokens == len(each.token_ids) < 200


def test_a_collection_goes_on_with_the_other_engine(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(out, None, 2)
    engine = whole()
    assert run(out, engine).n_collected == N - 2
    assert sum(bool(ask.xargs) for ask in engine.asked) == N - 2


def test_floors_are_measured_on_it_too(tmp_path: Path) -> None:
    found = run(tmp_path / "a.jsonl", whole(), 2, floors=2).floors
    assert found == run(tmp_path / "b.jsonl", None, 2, floors=2).floors
    assert found is not None
    assert found.forced_greedy.n > 0


class Losing:
    """Loses one event of each of the first `times` generations that have it."""

    def __init__(self, kind: type[Any], times: int) -> None:
        self.kind, self.left = kind, times
        self.seen: Counter[str] = Counter()

    def __call__(self, event: Event) -> bool:
        if not isinstance(event, self.kind) or not self.left:
            return False
        self.seen[event.identity.key] += 1
        lost = self.seen[event.identity.key] == 1
        self.left -= lost
        return lost


@pytest.mark.parametrize("kind", [Scored, Closed])
def test_a_generation_with_lost_events_is_run_again(tmp_path: Path, kind: type[Any]) -> None:
    engine, expected = whole(), tmp_path / "whole.jsonl"
    run(expected, engine)
    losing = dataclasses.replace(engine, lose=Losing(kind, 2), asked=[])
    run(tmp_path / "t.jsonl", losing)
    assert {t.trace_id: t for t in read_traces(tmp_path / "t.jsonl")} == {
        t.trace_id: t for t in read_traces(expected)
    }
    assert sum(bool(ask.xargs) for ask in losing.asked) == N + 2


def test_after_three_tries_it_is_an_error_that_says_what_was_missing(tmp_path: Path) -> None:
    engine = dataclasses.replace(whole(), lose=lambda event: isinstance(event, Scored))
    with pytest.raises(EngineError, match=r"incomplete 3 times, at last: \d+ events were made"):
        run(tmp_path / "t.jsonl", engine, 1)
    assert len(engine.asked) == 3


def test_an_error_of_the_plugin_is_told(tmp_path: Path) -> None:
    engine = whole()
    engine.runtime.stream = dataclasses.replace(engine.runtime.stream, layers=(99,))
    with pytest.raises(EngineError, match="a hidden state has 0 bytes where 256 were asked for"):
        run(tmp_path / "t.jsonl", engine, 1)
    other = dataclasses.replace(whole(), profile=dataclasses.replace(PROFILE, every_n=5))
    with pytest.raises(EngineError, match="another version or another profile"):
        run(tmp_path / "u.jsonl", other, 1)


def test_jobs_that_cannot_run_here_are_refused() -> None:
    runner = runner_on(whole())
    maker = JobMaker(runner.model, PROFILE, Sampling(0.0, 1.0, None, 30))
    prompt = maker.prompt("What is 1 + 4?")
    with pytest.raises(EngineError, match="must have mode 'off'"):
        runner.add(maker.job("a", prompt, Control("active"), 1))
    with pytest.raises(EngineError, match="must have mode 'off'"):
        runner.add(maker.job("a", prompt, Control("off", budget=9), 1))
    assert not runner.busy
    runner.add(maker.job("long", [5] * 600, Control("off"), 1, max_tokens=5))
    (failed,) = runner.step()
    assert failed.key == "long"
    assert not runner.busy


def test_the_context_is_one_shorter_where_every_token_is_kept() -> None:
    assert runner_on(whole()).model.max_length == 511
    assert runner_on(TinyVllm(TAPS)).model.max_length == 512
    assert runner_on(whole()).model.hidden_size == WIDTH


def test_without_vllm_the_command_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['vllm'] = None\n"
        "sys.argv = 'desist collect --engine vllm --n 1 --out'.split()\n"
        f"sys.argv.append({str(tmp_path / 't.jsonl')!r})\n"
        "from desist.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'desist[vllm]'" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_arguments_of_vllm_need_its_engine(tmp_path: Path) -> None:
    desist = [sys.executable, "-c", "from desist.cli import main; main()"]
    command = [*desist, "collect", "--vllm-arg=--seed=1", "--out", "t.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "--engine vllm" in done.stderr
