"""Synthetic traces and calibration arrays with a known truth, for tests of the statistics.

A trace's answer wanders between right and wrong and settles; its score follows, with noise. Nothing here
resembles a model: only the shapes and the dependence matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from desist.calibration.paths import Paths
from desist.data.schema import BoundaryRecord, Trace

__all__ = ["make_trace", "make_traces", "random_paths", "true_risk"]


def make_trace(
    scores: list[float],
    bad: list[bool],
    *,
    name: str = "t",
    gap: int = 50,
    answer_tokens: int = 10,
    full_correct: bool | None = True,
    truncated: bool = False,
    problem: str | None = None,
    kinds: list[str] | None = None,
) -> Trace:
    """A trace with the given scores; where `bad` the forced answer is "wrong", else it is the full one."""
    boundaries = tuple(
        BoundaryRecord(
            index=place,
            position=gap * (place + 1),
            char=4 * gap * (place + 1),
            kind=kinds[place] if kinds else ("cue" if place % 2 == 0 else "paragraph"),  # type: ignore[arg-type]
            text="wait",
            scores={"probe": score},
            forced_answer=f"wrong {place % 3}" if is_bad else "42",
            forced_confidence=min(1.0, 0.5 + score / 2),
            forced_tokens=answer_tokens,
            consistent=not is_bad,
            correct=(not is_bad) if full_correct else False,
        )
        for place, (score, is_bad) in enumerate(zip(scores, bad, strict=True))
    )
    n = gap * (len(scores) + 1)
    return Trace(
        trace_id=f"trace-{name}",
        problem_id=f"problem-{name}",
        model="fake",
        problem=f"Problem {name}?" if problem is None else problem,
        reasoning="so " * ((4 * n) // 3 + 2),
        answer="The answer is \\boxed{42}",
        n_reasoning_tokens=n,
        n_answer_tokens=answer_tokens,
        truncated=truncated,
        full_correct=full_correct,
        gold="42",
        boundaries=boundaries,
    )


def make_traces(
    n: int,
    seed: int,
    *,
    prefix: str = "",
    right_at_first: float = 0.5,
    break_rate: float = 0.05,
    mend_rate: float = 0.3,
    noise: float = 1.0,
    accuracy: float = 0.9,
) -> list[Trace]:
    """n traces of distinct problems; scores separate good from bad boundaries by about 2/noise sd."""
    rng = np.random.default_rng(seed)
    traces = []
    for row in range(n):
        length = int(rng.integers(3, 14))
        good = bool(rng.random() < right_at_first)
        scores, bad = [], []
        for _ in range(length):
            scores.append(float(1 / (1 + np.exp(-(2.0 * (1 if good else -1) + noise * rng.normal())))))
            bad.append(not good)
            good = bool(rng.random() >= break_rate) if good else bool(rng.random() < mend_rate)
        traces.append(
            make_trace(
                scores,
                bad,
                name=f"{prefix}{seed}-{row}",
                gap=int(rng.integers(20, 60)),
                full_correct=bool(rng.random() < accuracy),
            )
        )
    return traces


def random_paths(
    rng: np.random.Generator, n: int, *, t: int = 12, noise: float = 1.0, break_rate: float = 0.08
) -> Paths:
    """n i.i.d. traces as arrays, made at once: the population whose risk is known from a large draw."""
    good = np.empty((n, t), dtype=np.bool_)
    good[:, 0] = rng.random(n) < 0.5
    for step in range(1, t):
        chance = rng.random(n)
        good[:, step] = np.where(good[:, step - 1], chance >= break_rate, chance < 0.25)
    scores = 1 / (1 + np.exp(-(2.0 * np.where(good, 1, -1) + noise * rng.normal(size=(n, t)))))
    there = np.arange(t)[None, :] < rng.integers(2, t + 1, size=n)[:, None]
    tokens = np.broadcast_to(50 * np.arange(1, t + 1), (n, t)).astype(np.int64) + 10
    full = 50 * (there.sum(axis=1) + 1) + 10
    return Paths(np.where(there, scores, -np.inf), there & ~good, tokens, full, full)


def true_risk(population: Paths, lam: float | None) -> float:
    """Share of the population that is lost at `lam`."""
    stops = population.stops(lam)
    rows: NDArray[np.int64] = np.flatnonzero(stops >= 0)
    return float(population.bad[rows, stops[rows]].sum() / len(population))
