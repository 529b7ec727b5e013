"""Adaptive conformal inference on audits: a threshold that follows the audited losses. Off unless asked for.

Another claim than a certificate's, never to be mixed with it: over any sequence of T audits, adversarial ones
included, the mean audited loss is at most alpha + (alpha_1 + gamma) / (gamma T). An average over time;
nothing about one request, and no delta. Gibbs and Candes (2021); clipped as below, which
keeps the upper side only.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from desist.calibration.exact import exact_text
from desist.data.errors import CalibrationError

__all__ = ["AdaptiveThreshold"]


class AdaptiveThreshold:
    """alpha_t+1 = min(1, alpha_t + gamma (alpha - loss_t)), and the critical scores' quantile at alpha_t.

    `critical` [n]: critical scores of calibration traces (-inf where no stop is bad). alpha_t <= 0: never
    stop, which loses nothing, so alpha_t >= -gamma. Thresholds below `lowest` are not given out: a higher
    threshold only lowers the critical loss. Only audited requests may be observed.
    """

    def __init__(
        self, critical: ArrayLike, alpha: Fraction, *, gamma: float = 0.01, lowest: float = 0.0
    ) -> None:
        scores = np.sort(np.asarray(critical, dtype=np.float64))
        if scores.ndim != 1 or len(scores) == 0 or np.isnan(scores).any():
            raise CalibrationError(
                "give the critical scores of calibration traces, [n], all of them numbers."
            )
        if not (0 < alpha < 1 and 0 < gamma <= 1 and 0 <= lowest <= 1):
            raise CalibrationError(
                f"alpha {alpha}, gamma {gamma}, lowest threshold {lowest}: alpha lies in (0, 1), gamma in "
                "(0, 1], the threshold in [0, 1]."
            )
        self._scores, self.alpha, self.gamma, self.lowest = scores, alpha, gamma, lowest
        self.level, self.n, self.losses = float(alpha), 0, 0.0

    @property
    def threshold(self) -> float | None:
        """lam for the next request; None: never stop."""
        if self.level <= 0:
            return None
        n = len(self._scores)
        rank = max(0, math.ceil(Fraction(n + 1) * (1 - min(Fraction(1), Fraction(self.level)))))
        if rank > n:
            return None
        found = self.lowest if rank == 0 else float(self._scores[rank - 1])
        return max(self.lowest, found)

    def observe(self, loss: float) -> None:
        """Take the loss of one audited request under `threshold`, in [0, 1]."""
        if not 0 <= loss <= 1:
            raise CalibrationError(f"an audit's loss is {loss}; it lies in [0, 1].")
        self.n, self.losses = self.n + 1, self.losses + loss
        self.level = min(1.0, self.level + self.gamma * (float(self.alpha) - loss))

    @property
    def bound(self) -> float:
        """What the mean audited loss cannot exceed after the audits so far; 1 before the first."""
        if self.n == 0:
            return 1.0
        return min(1.0, float(self.alpha) + (float(self.alpha) + self.gamma) / (self.gamma * self.n))

    @property
    def claim(self) -> str:
        """What may be said, in words."""
        return (
            f"Adaptive threshold: over the {self.n} audits so far the mean loss is at most {self.bound:.4g}, "
            f"tending to {exact_text(self.alpha)}, whatever the traffic did. This is an average over time. "
            "It is no certificate: nothing is claimed for one request, and requests it stops are uncertified."
        )

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "n": self.n, "losses": self.losses}

    def restore(self, state: dict[str, Any]) -> None:
        self.level, self.n, self.losses = float(state["level"]), int(state["n"]), float(state["losses"])
