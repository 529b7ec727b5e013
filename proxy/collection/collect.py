"""Collects traces: sampled full runs, their boundaries and hidden states, a forced exit at each boundary.

A forced exit is a fork of the running trace: it goes on from what was read up to the boundary's token, and
the hand-off's ids are forced, exactly as in a live stop. Its answer is ONE draw of the production sampler.
Knows traces, labels and files; the generation is the serving engine's own, embedded or vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from desist.controller import AnswerMode, Control, ModelProfile
from desist.data.answers import extract_answer
from desist.data.errors import EngineError
from desist.data.judging import answers_equal
from desist.data.schema import BoundaryRecord, Problem, Sampling, Trace
from desist.data.writer import TraceWriter
from desist.probes.features import HiddenDtype, HiddenWriter, TokenHiddenWriter, hidden_dir, token_dir
from desist.proxy.collection.batch_runs import (
    BatchRunner,
    JobMaker,
    Progress,
    drive,
    embedded_runner,
    request_seed,
)
from desist.proxy.collection.floors import FLOOR_PROBLEMS, Floors, measure_floors
from desist.proxy.engines.embedded.job import Done, Job, Reached
from desist.proxy.engines.embedded.sampler import derived_seed
from desist.proxy.engines.model import ModelFacts

__all__ = ["CollectReport", "collect", "trace_id_of"]

_SPARE = 0.4  # share of slots for forced exits; measured: a trace's exits take two thirds of its own steps


def trace_id_of(seed: int, problem_id: str) -> str:
    """The id of the trace that a collection with `seed` makes of a problem."""
    return f"{problem_id}-s{seed}"


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What a collection did. Counts are of this call; `n_traces` of the file. Rates are None without data."""

    out: Path
    n_traces: int
    n_collected: int
    n_boundaries: int
    n_truncated: int
    consistent_rate: float | None
    correct_rate: float | None
    full_accuracy: float | None
    tokens: int
    floors: Floors | None = None


def collect(
    problems: Sequence[Problem],
    *,
    model: ModelFacts,
    profile: ModelProfile,
    sampling: Sampling,
    out: str | Path,
    seed: int,
    taps: Sequence[int] = (),
    keep_tokens_tap: int | None = None,
    batch: int = 64,
    answer: AnswerMode = "write",
    judge: str = "math",
    top_k: int | None = None,
    template: Mapping[str, Any] | None = None,
    hidden_dtype: HiddenDtype = "float16",
    floors: bool | int = False,
    progress: Progress | None = None,
    commit: int = 200,
    runner: BatchRunner | None = None,
) -> CollectReport:
    """Collect one trace per problem into `out`, hidden states beside it, and go on where a kill ended.

    `taps`: hidden states kept per boundary (`<out>.hidden`); `keep_tokens_tap`: the tap kept for every
    reasoning token (`<out>.hidden-tokens`). `sampling.seed` is not used: seeds derive from `seed`.
    `floors`: measure the floors on the first 200 problems (or as many as the number says). `progress` is
    called with (traces done, traces asked for). `commit`: traces between two writes, which is what a kill
    loses at most. `runner` runs the jobs and must read the same taps; without one the embedded engine does,
    which needs a loaded model. Raises `EngineError` without either.
    """
    maker = JobMaker(model, profile, sampling, top_k, template)
    plan = _Plan(maker, Path(out), seed, answer, judge)
    used = runner or embedded_runner(model, max_rows=batch, taps=taps, token_tap=keep_tokens_tap)
    tally = _Tally()
    with ExitStack() as stack:
        writer = stack.enter_context(TraceWriter(out))
        store = _Store(writer, plan, model.hidden_size, taps, keep_tokens_tap, hidden_dtype, commit)
        stack.callback(
            used.fail_all, EngineError("the collection has ended")
        )  # a caller's runner is used again
        todo = [p for p in problems if trace_id_of(seed, p.problem_id) not in writer.done]
        for trace in _traces(plan, used, todo, store):
            tally.add(trace)
            if progress is not None:
                progress(len(problems) - len(todo) + tally.n, len(problems))
        store.commit()
        total = len(writer.done)
    measured = None
    if floors:
        few = problems[: FLOOR_PROBLEMS if floors is True else floors]
        measured = measure_floors(
            few, maker=maker, seed=seed, batch=batch, answer=answer, judge=judge, runner=runner
        )
    return tally.report(Path(out), total, measured)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all traces of one collection share."""

    maker: JobMaker
    out: Path
    seed: int
    answer: AnswerMode
    judge: str

    def provenance(self) -> dict[str, Any]:
        return {
            "collector": "desist",
            "seed": self.seed,
            "judge": self.judge,
            "answer_mode": self.answer,
            "fingerprints": self.fingerprints(),
        }

    def fingerprints(self) -> dict[str, str]:
        maker = self.maker
        return maker.model.fingerprints_with(
            maker.profile, sampling=maker.sampling, top_k=maker.top_k, judge=self.judge, answer=self.answer
        )


@dataclass(slots=True)
class _Open:
    """A trace that is being made: its full run, its boundaries and their forced exits."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    reached: list[Reached] = field(default_factory=list)
    exits: dict[int, Done] = field(default_factory=dict)
    full: Done | None = None

    @property
    def complete(self) -> bool:
        return self.full is not None and len(self.exits) == len(self.reached)


def _traces(plan: _Plan, runner: BatchRunner, problems: Sequence[Problem], store: _Store) -> Iterator[Trace]:
    """Run the problems; each trace is handed to the store and yielded when it is complete."""
    opened: dict[int, _Open] = {}

    def jobs() -> Iterator[Job]:
        for number, problem in enumerate(problems):
            prompt = plan.maker.prompt(problem.text)
            opened[number] = _Open(problem, prompt)
            chosen = request_seed(plan.seed, problem.problem_id)
            control = Control("off", answer=plan.answer)
            yield plan.maker.job((number, None), prompt, control, chosen, capture=True)

    for event in drive(runner, jobs(), leave=_SPARE):
        key: Any = event.key
        number, index = key
        one = opened[number]
        if isinstance(event, Reached):
            one.reached.append(event)
            runner.add(_exit_job(plan, one, number, event))
        elif isinstance(event, Done) and index is None:
            one.full = event
        elif isinstance(event, Done):
            one.exits[index] = event
        if one.complete:
            del opened[number]
            trace = _assemble(plan, one)
            store.keep(trace, one)
            yield trace


def _exit_job(plan: _Plan, one: _Open, number: int, reached: Reached) -> Job:
    index = reached.boundary.index
    identity = trace_id_of(plan.seed, one.problem.problem_id)
    return plan.maker.job(
        (number, index),
        one.prompt_ids,
        Control("off", answer=plan.answer),
        derived_seed("exit", plan.seed, identity, index),
        max_tokens=plan.maker.exit_limit(one.prompt_ids, reached.boundary.position, plan.answer),
        prefix=reached.prefix,
    )


def _assemble(plan: _Plan, one: _Open) -> Trace:
    full, problem = one.full, one.problem
    assert full is not None
    answer = _extracted(full.content)
    records = []
    for reached in one.reached:
        boundary, done = reached.boundary, one.exits[reached.boundary.index]
        forced = _extracted(done.content)
        records.append(
            BoundaryRecord(
                boundary.index,
                boundary.position,
                reached.char,
                boundary.kind,
                boundary.text,
                forced_answer=done.content,
                forced_confidence=done.confidence,
                forced_tokens=done.usage.completion_tokens,
                consistent=answers_equal(forced, answer, plan.judge),
                correct=None if problem.gold is None else answers_equal(forced, problem.gold, plan.judge),
            )
        )
    sampling = plan.maker.sampling
    seed = request_seed(plan.seed, problem.problem_id)
    return Trace(
        trace_id_of(plan.seed, problem.problem_id),
        problem.problem_id,
        plan.maker.model.name,
        problem.text,
        full.reasoning,
        full.content,
        full.usage.reasoning_tokens,
        full.usage.answer_tokens,
        full.finish_reason == "length",
        problem.group,
        problem.dataset,
        ({"role": "user", "content": problem.text},),
        problem.gold,
        None if problem.gold is None else answers_equal(answer, problem.gold, plan.judge),
        Sampling(sampling.temperature, sampling.top_p, seed, plan.maker.limit(one.prompt_ids)),
        tuple(records),
        {**plan.provenance(), "prompt_tokens": len(one.prompt_ids)},
    )


def _extracted(content: str) -> str | None:
    return extract_answer(content) if content else None


class _Store:
    """Writes hidden states before the traces they belong to, in groups."""

    def __init__(
        self,
        writer: TraceWriter,
        plan: _Plan,
        width: int,
        taps: Sequence[int],
        token_tap: int | None,
        dtype: HiddenDtype,
        every: int,
    ) -> None:
        self._writer, self._every = writer, every
        prints = plan.fingerprints()
        self._hidden = (
            HiddenWriter(hidden_dir(plan.out), taps, width, dtype, fingerprints=prints) if taps else None
        )
        self._tokens = (
            TokenHiddenWriter(token_dir(plan.out), token_tap, width, dtype, fingerprints=prints)
            if token_tap is not None
            else None
        )
        self._pending: list[Trace] = []

    def keep(self, trace: Trace, one: _Open) -> None:
        if self._hidden is not None:
            rows = [reached.hidden for reached in one.reached]
            indices = [reached.boundary.index for reached in one.reached]
            self._hidden.add(trace.trace_id, indices, np.stack(rows) if rows else np.empty((0, 0)))
        if self._tokens is not None and one.full is not None:
            kept = one.full.token_hidden
            self._tokens.add(trace.trace_id, np.empty((0, 0)) if kept is None else kept)
        self._pending.append(trace)
        if len(self._pending) >= self._every:
            self.commit()

    def commit(self) -> None:
        """Make everything so far survive a kill."""
        for hidden in (self._hidden, self._tokens):
            if hidden is not None:
                hidden.flush()
        for trace in self._pending:
            self._writer.write(trace)
        self._pending.clear()


@dataclass(slots=True)
class _Tally:
    """Counts for the report."""

    n: int = 0
    n_boundaries: int = 0
    truncated: int = 0
    tokens: int = 0
    right: int = 0
    judged: int = 0
    consistent: int = 0
    exits_right: int = 0
    exits_judged: int = 0

    def add(self, trace: Trace) -> None:
        self.n += 1
        self.n_boundaries += len(trace.boundaries)
        self.truncated += trace.truncated
        self.tokens += trace.n_reasoning_tokens + trace.n_answer_tokens
        if trace.full_correct is not None:
            self.judged += 1
            self.right += trace.full_correct
        for record in trace.boundaries:
            self.tokens += record.forced_tokens or 0
            self.consistent += bool(record.consistent)
            if record.correct is not None:
                self.exits_judged += 1
                self.exits_right += record.correct

    def report(self, out: Path, total: int, floors: Floors | None) -> CollectReport:
        return CollectReport(
            out,
            total,
            self.n,
            self.n_boundaries,
            self.truncated,
            self.consistent / self.n_boundaries if self.n_boundaries else None,
            self.exits_right / self.exits_judged if self.exits_judged else None,
            self.right / self.judged if self.judged else None,
            self.tokens,
            floors,
        )
