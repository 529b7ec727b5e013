"""Simulated traces with a known truth: the population on which guarantees are checked.

A trace's forced answer wanders between right and wrong and settles; its score follows with noise that is
partly the trace's own, so boundaries of one trace depend on each other as real ones do. Nothing here
resembles a model: only the shapes and the dependence matter. The population is finite and fixed, so that
the risk of any policy on it is a count, and draws from it with replacement are independent traces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from desist.calibration.losses import PARTS
from desist.calibration.paths import Paths, steps
from desist.calibration.signals import Signals

__all__ = ["POPULATIONS", "Kind", "Population", "Truth", "simulate"]

Kind = Literal["ties", "lengths", "wobble"]
POPULATIONS: tuple[Kind, ...] = get_args(Kind)
"""Heavy ties in the scores; very short and very long traces together (some without any boundary); answers
that are lost again after they were right."""

_HARD = 0.35  # share of hard problems: they settle late and their full run is wrong more often


@dataclass(frozen=True, slots=True)
class Population:
    """`signals`: with the consistency loss; `harm` [n, t]: a stop there is a harm; `right` [n]: the full run
    came right; `hard` [n]: a property of the problem that is known before it is run."""

    signals: Signals
    harm: NDArray[np.bool_]
    right: NDArray[np.bool_]
    hard: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.signals)

    def harmful(self) -> Signals:
        """The signals with the harm loss."""
        return replace(self.signals, bad=self.harm)

    def regretful(self) -> Signals:
        """The signals with the token regret."""
        bad, positions = self.signals.bad, self.signals.positions
        there = ~np.isnan(self.signals.scores)
        length = self.signals.run_tokens - _ANSWER
        tail = np.logical_and.accumulate((~bad | ~there)[:, ::-1], axis=1)[:, ::-1] & there
        settled = np.where(tail.any(axis=1), positions[np.arange(len(self)), tail.argmax(axis=1)], length)
        short = np.maximum(settled[:, None] - positions, 0) / length[:, None]
        parts = np.where(bad, np.clip(np.ceil(PARTS * short), 1, PARTS), 0).astype(np.int32)
        return replace(self.signals, parts=parts)


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact risk and saving, on a whole population, of the policy with any threshold."""

    n: int
    entered: NDArray[np.float64]
    left: NDArray[np.float64]
    weight_in: NDArray[np.int64]
    weight_out: NDArray[np.int64]
    scale: int
    tokens_in: NDArray[np.int64]
    tokens_out: NDArray[np.int64]
    all_in: NDArray[np.float64]
    all_out: NDArray[np.float64]
    full: int
    run: int

    @classmethod
    def of(cls, paths: Paths) -> Truth:
        found = steps(paths)
        place = (found.row, found.column)
        loss = (
            paths.bad[place].astype(np.int64) if paths.parts is None else paths.parts[place].astype(np.int64)
        )
        extra = paths.tokens[place] - paths.full_tokens[found.row]
        costly = loss > 0
        low, high, loss = found.low[costly], found.high[costly], loss[costly]
        by_low, by_high = np.argsort(low, kind="stable"), np.argsort(high, kind="stable")
        first, last = np.argsort(found.low, kind="stable"), np.argsort(found.high, kind="stable")
        return cls(
            len(paths),
            low[by_low],
            high[by_high],
            _sums(loss[by_low]),
            _sums(loss[by_high]),
            1 if paths.parts is None else PARTS,
            _sums(extra[first]),
            _sums(extra[last]),
            found.low[first],
            found.high[last],
            int(paths.full_tokens.sum()),
            int(paths.run_tokens.sum()),
        )

    def losses(self, lam: NDArray[np.float64]) -> NDArray[np.int64]:
        """Sum of the losses in units of 1/`scale` at each threshold, exact."""
        entered = np.searchsorted(self.entered, lam, side="right")
        return np.asarray(
            self.weight_in[entered] - self.weight_out[np.searchsorted(self.left, lam, side="right")]
        )

    def risk(self, lam: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean loss at each threshold."""
        return self.losses(lam) / (self.scale * self.n)

    def exceeds(self, lam: NDArray[np.float64], alpha: Fraction) -> NDArray[np.bool_]:
        """Whether the risk is above alpha at each threshold, decided in whole numbers."""
        return np.asarray(self.losses(lam) * alpha.denominator > alpha.numerator * self.scale * self.n)

    def saved(self, lam: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of tokens saved at each threshold."""
        extra = self.tokens_in[np.searchsorted(self.all_in, lam, side="right")]
        extra = extra - self.tokens_out[np.searchsorted(self.all_out, lam, side="right")]
        return np.asarray(1 - (self.full + extra) / self.run)

    def oracle(self, alpha: Fraction) -> float:
        """The threshold that saves most among those whose risk is at most alpha."""
        lams = np.unique(np.concatenate([self.all_in[np.isfinite(self.all_in)], self.all_out, [0.0, 1.0]]))
        lams = lams[lams >= 0]
        allowed = lams[~self.exceeds(lams, alpha)]
        return float(allowed[int(np.argmax(self.saved(allowed)))])


_ANSWER = 30


def simulate(kind: Kind, n: int, seed: int = 0) -> Population:
    """n traces of a kind of population, reproducible from the seed."""
    rng = np.random.default_rng([seed, POPULATIONS.index(kind)])
    hard = rng.random(n) < _HARD
    length = _lengths(kind, rng, n)
    width = int(length.max())
    there = np.arange(width)[None, :] < length[:, None]
    settle = np.where(hard, 0.1, 0.3)
    lost = {"ties": 0.02, "lengths": 0.02, "wobble": 0.2}[kind]
    good = np.empty((n, width), dtype=np.bool_)
    good[:, 0] = rng.random(n) < np.where(hard, 0.1, 0.45)
    for column in range(1, width):
        chance = rng.random(n)
        good[:, column] = np.where(good[:, column - 1], chance >= lost, chance < settle)
    own = 0.6 * rng.normal(size=(n, 1))
    scores = 1 / (1 + np.exp(-(np.where(good, 1.5, -1.5) + own + 1.0 * rng.normal(size=(n, width)))))
    if kind == "ties":
        scores = np.round(20 * scores) / 20
    gap = rng.integers(40, 120, size=n)
    positions = gap[:, None] * np.arange(1, width + 1)[None, :]
    run = gap * (length + 1) + _ANSWER
    right = rng.random(n) < np.where(hard, 0.5, 0.95)
    bad = there & ~good
    signals = Signals(
        scores=np.where(there, scores, np.nan),
        positions=np.where(there, positions, 0),
        held=np.zeros((n, width), dtype=np.bool_),
        bad=bad,
        parts=None,
        tokens=np.where(there, positions + _ANSWER, 0),
        full_tokens=run,
        run_tokens=run,
    )
    return Population(signals, bad & right[:, None], right, hard)


def _lengths(kind: Kind, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    if kind != "lengths":
        return rng.integers(4, 15, size=n)
    pick = rng.random(n)
    return np.where(pick < 0.4, rng.integers(0, 4, size=n), rng.integers(20, 31, size=n))


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(values)])
