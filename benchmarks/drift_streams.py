"""Simulated streams of traces for the drift detector, with a policy that really stops them.

Each trace has a settling place of its own; its scores rise there, with noise. Knows arrays only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAM", "MILD", "NONE", "STRONG", "Shift", "simulate"]

LAM = 0.8
_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Shift:
    """What changes: scores are raised to `power`, thinking gets `longer` times as long."""

    power: float = 1.0
    longer: float = 1.0


NONE = Shift()
#: The exponents of the research notes: a score u becomes u^1.4, u^2.2.
MILD = Shift(power=1.4)
STRONG = Shift(power=2.2)


def simulate(
    rng: np.random.Generator, n: int, lam: float | None = LAM, shift: Shift = NONE
) -> NDArray[np.float64]:
    """Statistics [n, 4] (`drift_statistics.STATISTICS`) of `n` traces; `lam` None: nobody stops them."""
    length = np.minimum(_WIDTH, 1 + np.round(rng.gamma(4.0, 3.0 * shift.longer, n)).astype(np.int64))
    settled = length * rng.beta(2.0, 3.0, n)
    step = np.arange(_WIDTH)[None, :]
    latent = 0.35 * (step - settled[:, None]) + rng.normal(0.0, 0.7, n)[:, None]
    scores = 1.0 / (1.0 + np.exp(-(latent + rng.normal(0.0, 0.8, (n, _WIDTH)))))
    scores = scores**shift.power
    seen = step < length[:, None]
    tokens = 40.0 * length + rng.integers(0, 40, n)
    if lam is not None:
        crossed = (scores > lam) & seen
        stop = np.where(crossed.any(axis=1), crossed.argmax(axis=1), _WIDTH)
        seen &= step <= stop[:, None]
        tokens = np.where(stop < _WIDTH, 40.0 * (stop + 1), tokens)
    shown = np.where(seen, scores, 0.0)
    return np.column_stack(
        [tokens, scores[:, 0], shown.sum(axis=1) / seen.sum(axis=1), np.where(seen, scores, -1).max(axis=1)]
    )
