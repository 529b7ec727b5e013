"""Bounds on audited loss that hold at every time at once, however often one looks.

Losses of audits are 0/1 (or in [0, 1]), one an audit. Knows counts only.

`RiskBounds`: confidence sequence for the risk. Betting on "the risk is m" with every alternative theta,
mixed by a uniform (Beta(1, 1)) prior, gives the wealth B(S+1, F+1) / (m^S (1-m)^F) after S losses in S + F
audits: a nonnegative martingale if the risk is m. Where it reaches 1/delta, m is out (Ville). (Robbins 1970;
Howard et al. 2021, beta-binomial mixture; Waudby-Smith and Ramdas 2024 for bets and losses in [0, 1], by
(theta/m)^L ((1-theta)/(1-m))^(1-L) <= L theta/m + (1-L) (1-theta)/(1-m).) Both sides together err with
probability at most delta, so each single side does too.

`LossAlarm`: whether the risk HAS RISEN above alpha. A mean over all audits is slow after many good ones, so
this one is a Shiryaev-Roberts sum as in `drift`: at most one false alarm in `alarm_every` audits while the
risk is at most alpha.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from scipy.optimize import brentq
from scipy.special import betaln, xlog1py, xlogy

from desist.calibration.exact import exact_text
from desist.calibration.intervals import Interval
from desist.calibration.pac import smallest_n
from desist.data.errors import CalibrationError

__all__ = ["LossAlarm", "RiskBounds", "needed_audits"]

_TIMES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)  # alternatives, as multiples of alpha
_LEAST = 1e-12


class RiskBounds:
    """Confidence sequence for the risk; `delta` is the probability that it ever misses."""

    def __init__(self, delta: Fraction, n: int = 0, losses: float = 0.0) -> None:
        if not 0 < delta < 1:
            raise CalibrationError(f"delta is {delta}; it must lie strictly between 0 and 1.")
        self._needed = -math.log(float(delta))
        self.n, self.losses = n, losses

    def observe(self, loss: float) -> None:
        """Take one audit's loss, in [0, 1]."""
        self.n, self.losses = self.n + 1, self.losses + _checked(loss)

    def log_wealth(self, risk: float) -> float:
        """Log evidence against "the risk is `risk`"."""
        won, lost = self.losses, self.n - self.losses
        return float(betaln(won + 1, lost + 1) - xlogy(won, risk) - xlog1py(lost, -risk))

    @property
    def interval(self) -> Interval:
        """The risks that are not refuted; (0, 1) before the first audit."""
        if self.n == 0:
            return Interval(0.0, 1.0)
        mean = self.losses / self.n
        return Interval(self._end(mean, 0.0), self._end(mean, 1.0))

    def _end(self, mean: float, side: float) -> float:
        """Where the log wealth crosses log(1/delta) between the mean, where it is least, and 0 or 1."""
        far = abs(side - _LEAST)
        if self.log_wealth(far) < self._needed or mean == side:
            return side
        near = min(max(mean, _LEAST), 1 - _LEAST)
        return float(brentq(lambda risk: self.log_wealth(risk) - self._needed, near, far, xtol=1e-12))


class LossAlarm:
    """Shiryaev-Roberts e-detector for "the risk is above `alpha`"; an alarm stays until `reset`."""

    def __init__(self, alpha: Fraction, alarm_every: float = 1000.0) -> None:
        level = float(alpha)
        if not 0 < level < 1 or not alarm_every > 1:
            raise CalibrationError(
                f"alpha is {alpha} and one false alarm in {alarm_every} audits: give an alpha between 0 "
                "and 1, and more than one audit."
            )
        rates = sorted({min(level * times, (1 + level) / 2) for times in _TIMES})
        # Factors of a bet on theta where a loss was seen, and where none was; their mean is 1 at alpha and
        # less below it, as theta > alpha.
        self._factors = [(theta / level, (1 - theta) / (1 - level)) for theta in rates]
        self._limit = alarm_every
        self.n = 0
        self.alarm_at: int | None = None
        self._sums = [0.0] * len(rates)

    @property
    def evidence(self) -> float:
        """R: alarm at `alarm_every`."""
        return sum(self._sums) / len(self._sums)

    def observe(self, loss: float) -> bool:
        """Take one audit's loss. True if it raised the alarm."""
        kept = 1 - _checked(loss)
        self.n += 1
        self._sums = [
            min((1 + held) * (loss * bad + kept * good), 1e200)
            for held, (bad, good) in zip(self._sums, self._factors, strict=True)
        ]
        if self.alarm_at is None and self.evidence >= self._limit:
            self.alarm_at = self.n
            return True
        return False

    def reset(self) -> None:
        self.alarm_at, self._sums = None, [0.0] * len(self._sums)

    def state(self) -> dict[str, Any]:
        return {"n": self.n, "alarm_at": self.alarm_at, "sums": self._sums}

    def restore(self, state: dict[str, Any]) -> None:
        if len(state["sums"]) != len(self._sums):
            raise CalibrationError("the saved audit evidence has another shape. Start it anew.")
        self.n, self.alarm_at = int(state["n"]), state["alarm_at"]
        self._sums = [float(value) for value in state["sums"]]


def needed_audits(delta: Fraction, levels: tuple[Fraction, ...] = (Fraction(1, 20), Fraction(1, 100))) -> str:
    """How many audits without a loss certify each level, in words."""
    parts = [f"{smallest_n(level, delta)} certify {exact_text(level * 100)} %" for level in levels]
    return f"0 losses in {', in '.join(parts)} (delta {exact_text(delta)})"


def _checked(loss: float) -> float:
    if not 0 <= loss <= 1:
        raise CalibrationError(f"an audit's loss is {loss}; it lies in [0, 1].")
    return float(loss)
