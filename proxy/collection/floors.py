"""Floors: how often two runs that nobody stopped disagree. No stopping rule can be expected to do better.

Runs a subset of the problems again, through the same runner. Knows no policy and writes no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from desist.controller import AnswerMode, Control
from desist.data.answers import extract_answer
from desist.data.judging import answers_equal
from desist.data.schema import Problem
from desist.proxy.collection.batch_runs import BatchRunner, JobMaker, drive, embedded_runner, request_seed
from desist.proxy.engines.embedded.job import Done, Job, Reached
from desist.proxy.engines.embedded.sampler import derived_seed

__all__ = ["FLOOR_PROBLEMS", "Floors", "Rate", "measure_floors"]

FLOOR_PROBLEMS = 200


class Rate(NamedTuple):
    """`k` of `n`."""

    k: int
    n: int

    @property
    def value(self) -> float | None:
        return self.k / self.n if self.n else None


@dataclass(frozen=True, slots=True)
class Floors:
    """Disagreement of answers, by the named judge, with the full runs of the collection.

    `resampled`: the answer drawn again after the natural close of the same thinking. `second_run`: a full
    run with another seed. `greedy_run`: a greedy full run. `forced_greedy`: at boundaries, the forced
    answer drawn greedily against the one that is sampled. Accuracies where gold answers are known.
    """

    n_problems: int
    resampled: Rate
    second_run: Rate
    greedy_run: Rate
    forced_greedy: Rate
    accuracy_sampled: Rate
    accuracy_greedy: Rate


def measure_floors(
    problems: Sequence[Problem],
    *,
    maker: JobMaker,
    seed: int,
    batch: int = 64,
    answer: AnswerMode = "write",
    judge: str = "math",
    runner: BatchRunner | None = None,
) -> Floors:
    """Run each problem twice sampled and once greedily, redraw its answer, and force exits both ways.

    `runner`: see `collect`.
    """
    used = runner or embedded_runner(maker.model, max_rows=batch)
    found = _run(problems, maker, used, seed, answer)
    closed = maker.model.vocabulary.special_id(maker.profile.think_close)
    again = _Answers({})
    redraws = list(_redraws(problems, maker, found.done, seed, closed))
    for event in drive(used, redraws):
        if isinstance(event, Done):
            again.done[event.key] = event
    numbers = range(len(problems))
    full = {n: found.text(n, "full") for n in numbers}
    forced = [key for key in found.done if isinstance(key[1], int)]

    def differ(pairs: Sequence[tuple[str | None, str | None]]) -> Rate:
        return Rate(sum(not answers_equal(a, b, judge) for a, b in pairs), len(pairs))

    def right(kind: str) -> Rate:
        graded = [(found.text(n, kind), problems[n].gold) for n in numbers if problems[n].gold is not None]
        return Rate(sum(answers_equal(a, gold, judge) for a, gold in graded), len(graded))

    return Floors(
        len(problems),
        differ([(full[key[0]], again.text(*key)) for key in again.done]),
        differ([(full[n], found.text(n, "second")) for n in numbers]),
        differ([(full[n], found.text(n, "greedy")) for n in numbers]),
        differ([(found.text(n, index), found.text(n, ("greedy", index))) for n, index in forced]),
        right("full"),
        right("greedy"),
    )


class _Answers(NamedTuple):
    """Finished jobs by (problem number, what they were)."""

    done: dict[Any, Done]

    def text(self, number: int, kind: Any) -> str | None:
        content = self.done[number, kind].content
        return extract_answer(content) if content else None


def _run(
    problems: Sequence[Problem], maker: JobMaker, runner: BatchRunner, seed: int, answer: AnswerMode
) -> _Answers:
    found = _Answers({})
    prompts = [maker.prompt(problem.text) for problem in problems]
    control = Control("off", answer=answer)

    def jobs() -> Iterator[Job]:
        for number, problem in enumerate(problems):
            first = request_seed(seed, problem.problem_id)
            second = derived_seed("second", seed, problem.problem_id)
            yield maker.job((number, "full"), prompts[number], control, first, capture=True)
            yield maker.job((number, "second"), prompts[number], control, second)
            yield maker.job((number, "greedy"), prompts[number], control, 0, greedy=True)

    for event in drive(runner, jobs(), leave=0.4):
        if isinstance(event, Done):
            found.done[event.key] = event
        elif isinstance(event, Reached):
            key: Any = event.key
            number, index, prefix = key[0], event.boundary.index, event.prefix
            prompt = prompts[number]
            limit = maker.exit_limit(prompt, event.boundary.position, answer)
            drawn = derived_seed("floor", seed, problems[number].problem_id, index)
            for name, greedy in ((index, False), (("greedy", index), True)):
                runner.add(
                    maker.job(
                        (number, name), prompt, control, drawn, greedy=greedy, max_tokens=limit, prefix=prefix
                    )
                )
    return found


def _redraws(
    problems: Sequence[Problem], maker: JobMaker, done: dict[Any, Done], seed: int, closed: int | None
) -> Iterator[Job]:
    """A job per trace that closed its thinking by itself: everything up to the close tag is its prompt."""
    for number, problem in enumerate(problems):
        ids = done[number, "full"].token_ids
        if closed in ids:
            prompt = (*maker.prompt(problem.text), *ids[: ids.index(closed) + 1])
            chosen = derived_seed("resample", seed, problem.problem_id)
            yield maker.job((number, "again"), prompt, Control("off"), chosen)
