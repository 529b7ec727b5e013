"""Runs many problems through a runner in this process, with or without control.

Knows how a problem becomes a job and which seed it gets. `collect` builds traces on it, with any runner;
demonstrations and studies use `run_batch` for paired runs on the embedded one: the same problems and seeds,
full and stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from desist.controller import (
    AnswerMode,
    Control,
    Decision,
    ModelProfile,
    Scored,
    Session,
    StopReason,
    answer_reserve,
)
from desist.data.answers import extract_answer
from desist.data.errors import EngineError
from desist.data.schema import Problem, Sampling
from desist.probes.base import Probe, StreamingProbe
from desist.proxy.engines.base import FinishReason, Usage
from desist.proxy.engines.embedded.job import Done, Event, Failed, Job
from desist.proxy.engines.embedded.loading import LoadedModel
from desist.proxy.engines.embedded.runner import Runner
from desist.proxy.engines.embedded.sampler import Draw, derived_seed
from desist.proxy.engines.model import ModelFacts

__all__ = [
    "BatchRun",
    "BatchRunner",
    "JobMaker",
    "Progress",
    "RunResult",
    "drive",
    "embedded_runner",
    "request_seed",
    "run_batch",
]

Progress = Callable[[int, int], None]


def request_seed(seed: int, problem_id: str) -> int:
    """The sampling seed of a problem's full run in a collection with `seed`.

    A live request with this seed and the same sampler generates the same trace.
    """
    return derived_seed("request", seed, problem_id)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One problem, run once. `answer` is the extracted answer, `content` the text it stands in.

    `n_tokens`: everything generated (reasoning, hand-off, answer). `stop_index`: index of the boundary of
    the stop (None: not stopped, or stopped between two boundaries). `finished_s`: seconds from the start
    of the batch to this result.
    """

    problem_id: str
    seed: int
    reasoning: str
    content: str
    answer: str | None
    usage: Usage
    finish_reason: FinishReason
    stop_reason: StopReason
    decision: Decision | None
    shadow: Decision | None
    boundaries: tuple[Scored, ...]
    finished_s: float

    @property
    def n_tokens(self) -> int:
        return self.usage.completion_tokens

    @property
    def stop_index(self) -> int | None:
        return self.decision.index if self.decision else None


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Results in the order of the problems, and the wall clock of the whole batch."""

    results: tuple[RunResult, ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class JobMaker:
    """Makes jobs of one model, profile and sampler. `max_tokens` None: what the context leaves."""

    model: ModelFacts
    profile: ModelProfile
    sampling: Sampling
    top_k: int | None = None
    template: Mapping[str, Any] | None = None
    min_answer_tokens: int = 256

    def prompt(self, problem: str) -> tuple[int, ...]:
        """Ids of the rendered problem."""
        return self.model.chat_ids([{"role": "user", "content": problem}], self.template)

    def limit(self, prompt_ids: Sequence[int]) -> int:
        """Tokens that may be generated after this prompt."""
        room = (self.model.max_length or 1 << 20) - len(prompt_ids)
        wanted = self.sampling.max_tokens
        return room if wanted is None else min(wanted, room)

    def exit_limit(self, prompt_ids: Sequence[int], kept: int, answer: AnswerMode) -> int:
        """Tokens that a forced exit after `kept` reasoning tokens may generate, hand-off included.

        Near the end of `max_tokens` a live stop would have come earlier, to leave the answer its reserve;
        an exit that is forced there is given that reserve.
        """
        limit = self.limit(prompt_ids)
        handoff = len(self.model.vocabulary.encode(self.profile.handoff(answer)))
        least = handoff + answer_reserve(limit, self.min_answer_tokens)
        room = (self.model.max_length or 1 << 20) - len(prompt_ids) - kept
        return max(1, min(room, max(limit - kept, least)))

    def job(
        self,
        key: Any,
        prompt_ids: Sequence[int],
        control: Control,
        seed: int,
        *,
        greedy: bool = False,
        **fields: Any,
    ) -> Job:
        """A job that does not stream. `fields` are those of `Job`."""
        limit = fields.pop("max_tokens", None) or self.limit(prompt_ids)
        ids = tuple(prompt_ids)
        session = Session(
            self.profile,
            self.model.vocabulary,
            control,
            ids,
            limit,
            min_answer_tokens=self.min_answer_tokens,
        )
        draw = Draw(0.0) if greedy else Draw(self.sampling.temperature, self.sampling.top_p, self.top_k)
        return Job(key, ids, session, draw, seed, limit, stream=False, **fields)


class BatchRunner(Protocol):
    """Runs jobs side by side, token by token: the embedded `Runner`, or vLLM (`engines.vllm.batch`)."""

    @property
    def max_rows(self) -> int: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_waiting(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def add(self, job: Job) -> None: ...
    def step(self) -> list[Event]: ...
    def fail_all(self, error: Exception) -> list[Event]: ...


def embedded_runner(model: ModelFacts, **settings: Any) -> Runner:
    """A `Runner` with these settings. Raises `EngineError` for a model whose weights are not loaded."""
    if not isinstance(model, LoadedModel):
        raise EngineError(
            f"model '{model.name}' is described, not loaded. Load it with load_model, or name the runner "
            "that runs it elsewhere."
        )
    return Runner(model, **settings)


def drive(runner: BatchRunner, jobs: Iterable[Job], *, leave: float = 0.0) -> Iterator[Event]:
    """Feed jobs to the runner as slots get free, and yield its events.

    The consumer may add further jobs to the runner on the way; `leave` is the share of slots that are
    kept free for them. Raises the error of a job that failed.
    """
    source = iter(jobs)
    most = max(1, round(runner.max_rows * (1.0 - leave)))
    started: set[Any] = set()
    exhausted = False
    while True:
        while not exhausted and len(started) < most and runner.n_running + runner.n_waiting < runner.max_rows:
            job = next(source, None)
            if job is None:
                exhausted = True
            else:
                started.add(job.key)
                runner.add(job)
        if not runner.busy:
            return
        for event in runner.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                started.discard(event.key)
            yield event


def run_batch(
    problems: Sequence[Problem],
    control: Control,
    *,
    model: LoadedModel,
    profile: ModelProfile,
    sampling: Sampling,
    seed: int,
    batch: int = 64,
    probe: Probe | None = None,
    rom: StreamingProbe | None = None,
    top_k: int | None = None,
    template: Mapping[str, Any] | None = None,
    min_answer_tokens: int = 256,
    greedy: bool = False,
    progress: Progress | None = None,
) -> BatchRun:
    """Run every problem once under `control`, with the seed `request_seed(seed, problem_id)`.

    Two calls that differ in `control` only are paired runs: they sample the same tokens until one stops.
    """
    maker = JobMaker(model, profile, sampling, top_k, template, min_answer_tokens)
    runner = Runner(model, max_rows=batch, probe=probe, rom=rom)
    results: dict[int, RunResult] = {}
    began = time.perf_counter()

    def jobs() -> Iterator[Job]:
        for number, problem in enumerate(problems):
            chosen = request_seed(seed, problem.problem_id)
            yield maker.job(number, maker.prompt(problem.text), control, chosen, greedy=greedy)

    for event in drive(runner, jobs()):
        if isinstance(event, Done):
            number: Any = event.key
            results[number] = _result(problems[number], seed, event, time.perf_counter() - began)
            if progress is not None:
                progress(len(results), len(problems))
    return BatchRun(tuple(results[number] for number in range(len(problems))), time.perf_counter() - began)


def _result(problem: Problem, seed: int, done: Done, finished_s: float) -> RunResult:
    return RunResult(
        problem.problem_id,
        request_seed(seed, problem.problem_id),
        done.reasoning,
        done.content,
        extract_answer(done.content) if done.content else None,
        done.usage,
        done.finish_reason,
        done.stop_reason,
        done.decision,
        done.shadow,
        done.boundaries,
        finished_s,
    )
