"""`desist study reasoner`: is the built-in reasoner the test bed that it claims to be?

Runs held-out problems at the served sampler, with and without thinking, and measures. Knows no probe.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from desist.controller import Control, Policy
from desist.data.judging import answers_equal
from desist.data.reasoner.measure import CueView, TraceResult, headroom, measure, written_value
from desist.data.records import read_traces
from desist.data.schema import Sampling, Trace
from desist.proxy.collection.batch_runs import Progress, run_batch
from desist.proxy.collection.collect import collect
from desist.proxy.studies.builtin import Builtin, builtin_problems

__all__ = ["StudyReport", "study_reasoner"]


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The figures and the bounds they are held against; `misses` names those that do not hold."""

    figures: dict[str, Any]
    misses: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {**self.figures, "misses": list(self.misses)}


def study_reasoner(
    builtin: Builtin, *, seed: int, n: int = 500, batch: int = 64, progress: Progress | None = None
) -> StudyReport:
    """Run `n` problems of the test split and measure what the test bed must show."""
    problems = builtin_problems("test", seed, n)
    shared: dict[str, Any] = {
        "model": builtin.model,
        "profile": builtin.profile,
        "sampling": builtin.sampling,
        "seed": seed,
        "batch": batch,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.jsonl"
        report = collect(problems, out=path, progress=progress, floors=min(n, 200), **shared)
        traces = list(read_traces(path))
    silent = run_batch(
        problems, Control(mode="off", policy=Policy(lam=None)), template={"enable_thinking": False}, **shared
    )
    guessed = [
        answers_equal(run.answer, problem.gold) for run, problem in zip(silent.results, problems, strict=True)
    ]
    found = asdict(measure([_result(trace) for trace in traces], _cues(traces)))
    tokens = sum(trace.n_reasoning_tokens + trace.n_answer_tokens for trace in traces)
    figures = {
        **found,
        "accuracy_full": sum(trace.full_correct is True for trace in traces) / n,
        "accuracy_no_thinking": sum(guessed) / n,
        "headroom": sum(_headroom(builtin, trace) for trace in traces) / n,
        "headroom_characters": found["headroom"],
        "boundaries_per_trace": sum(len(trace.boundaries) for trace in traces) / n,
        "tokens_per_trace": tokens / n,
        "sampler": _sampler(builtin.sampling),
        "floors": asdict(report.floors) if report.floors else None,
        "seed": seed,
    }
    return StudyReport(figures, _misses(figures))


def _result(trace: Trace) -> TraceResult:
    return TraceResult(trace.gold or "", trace.reasoning, written_value(trace.answer), trace.truncated)


def _headroom(builtin: Builtin, trace: Trace) -> float:
    """Share of the reasoning tokens after the answer settled (0 where no answer is stated)."""
    encode = builtin.model.vocabulary.encode
    settled = (1.0 - headroom(trace.reasoning)) * len(trace.reasoning)
    return 1.0 - len(encode(trace.reasoning[: round(settled)])) / max(1, len(encode(trace.reasoning)))


def _cues(traces: list[Trace]) -> list[CueView]:
    return [
        CueView(trace.problem_id, trace.problem, trace.reasoning[: boundary.char], boundary.consistent)
        for trace in traces
        for boundary in trace.boundaries
        if boundary.kind == "cue" and boundary.consistent is not None
    ]


def _sampler(sampling: Sampling) -> dict[str, float | int | None]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }


def _misses(found: dict[str, Any]) -> tuple[str, ...]:
    bounds = (
        (found["accuracy_full"] >= 0.90, "full-run accuracy >= 0.90"),
        (found["accuracy_no_thinking"] <= 0.60, "accuracy with no thinking <= 0.60"),
        (0.60 <= found["accuracy_first"] <= 0.88, "first answer right between 0.60 and 0.88"),
        (found["headroom"] >= 0.5, "mean headroom >= 0.5"),
        (
            not found["bag_beats_rule"][0] > 0,
            "a bag of tokens predicts `consistent` no better than 'same answer twice' (95 % interval)",
        ),
    )
    return tuple(text for holds, text in bounds if not holds)
