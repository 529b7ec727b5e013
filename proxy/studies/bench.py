"""What scoring costs: the same full runs with the probe and without, interleaved, as ratios.

Shadow mode scores every boundary and stops nothing, so both sides generate the same tokens.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from desist.controller import Control, Policy
from desist.proxy.collection.batch_runs import run_batch
from desist.proxy.studies.builtin import Builtin, builtin_problems

__all__ = ["BenchReport", "bench_probe"]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """`ratios`: wall clock of scored / unscored runs, one per round; `tokens` generated a run."""

    n: int
    tokens: int
    ratios: tuple[float, ...]
    median_ratio: float
    unscored_tokens_per_s: float


def bench_probe(builtin: Builtin, *, seed: int, n: int, rounds: int, batch: int = 16) -> BenchReport:
    """Time `rounds` pairs of runs, in alternating order."""
    problems = builtin_problems("test", seed, n)
    ratios, speeds, tokens = [], [], 0
    for turn in range(rounds + 1):
        walls: dict[str, float] = {}
        order = ("off", "shadow") if turn % 2 else ("shadow", "off")
        for mode in order:
            ran = run_batch(
                problems,
                Control(mode="off" if mode == "off" else "shadow", policy=Policy(lam=None)),
                model=builtin.model,
                profile=builtin.profile,
                sampling=builtin.sampling,
                seed=seed,
                batch=batch,
                probe=builtin.required_probe(),
            )
            walls[mode] = ran.wall_s
            tokens = sum(result.n_tokens for result in ran.results)
        if turn:  # the first pair warms up
            ratios.append(walls["shadow"] / walls["off"])
            speeds.append(tokens / walls["off"])
    return BenchReport(n, tokens, tuple(ratios), statistics.median(ratios), statistics.median(speeds))
