"""Does a method keep its promise? Many calibrations drawn from a population whose risk is known exactly.

A method with a delta breaks its promise in a draw when the true risk of what it certified is above alpha;
that may happen in a share delta of draws. A method that promises a mean keeps it when the risk, averaged over
draws, is at most alpha. Cells in which nothing can be certified are told apart: they are no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from desist.calibration.exact import exact_text
from desist.calibration.simulation import Population

__all__ = ["Cell", "Outcome", "Rule", "run_cells", "violation_limit"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One calibration: did it certify anything, is its true risk above alpha, the risk and the saving."""

    certified: bool
    broken: bool
    risk: float = 0.0
    saved: float = 0.0


Draw = NDArray[np.int64]
Rule = Callable[[Draw, Fraction, np.random.Generator], Outcome]
"""From the rows of a calibration set, alpha and a generator for its own draws to what came of it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All draws of one method at one n and alpha on one population."""

    population: str
    method: str
    n: int
    alpha: Fraction
    draws: int
    certified: int
    broken: int
    risk: float
    risk_error: float
    saved: float

    @property
    def possible(self) -> bool:
        """Whether anything was certified in any draw."""
        return self.certified > 0

    def text(self) -> str:
        """One line for people."""
        head = f"{self.population:8} {self.method:28} n {self.n:5} alpha {exact_text(self.alpha):5}"
        if not self.possible:
            return f"{head} cannot certify"
        return (
            f"{head} certified {self.certified:4} of {self.draws}, above alpha {self.broken:4}, "
            f"mean risk {self.risk:.4f}, saved {self.saved:.4f}"
        )


def violation_limit(draws: int, delta: Fraction, cells: int, familywise: float = 0.01) -> int:
    """Most violations in one of `cells` that a valid method exceeds with probability at most `familywise`."""
    return int(binom.isf(familywise / cells, draws, float(delta)))


def run_cells(
    name: str,
    population: Population,
    rules: dict[str, Rule],
    sizes: Iterable[int],
    alphas: Sequence[Fraction],
    draws: int = 500,
    seed: int = 0,
) -> list[Cell]:
    """Every rule on the same draws, with replacement, for every n and alpha."""
    cells = []
    for n in sizes:
        kept: dict[tuple[str, Fraction], list[Outcome]] = {
            (rule, alpha): [] for rule in rules for alpha in alphas
        }
        for draw in range(draws):
            rng = np.random.default_rng([seed, n, draw])
            rows = rng.integers(0, len(population), size=n)
            for rule, run in rules.items():
                for alpha in alphas:
                    kept[rule, alpha].append(run(rows, alpha, rng))
        cells += [_cell(name, rule, n, alpha, outcomes) for (rule, alpha), outcomes in kept.items()]
    return cells


def _cell(name: str, rule: str, n: int, alpha: Fraction, outcomes: list[Outcome]) -> Cell:
    risks = np.asarray([one.risk for one in outcomes])
    return Cell(
        population=name,
        method=rule,
        n=n,
        alpha=alpha,
        draws=len(outcomes),
        certified=sum(one.certified for one in outcomes),
        broken=sum(one.broken for one in outcomes),
        risk=float(risks.mean()),
        risk_error=float(risks.std() / math.sqrt(len(risks))),
        saved=float(np.mean([one.saved for one in outcomes])),
    )
