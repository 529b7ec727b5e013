"""A fleet budget: choose among certified policies so that mean thinking tokens stay at a target.

After EERO (Valade et al. 2025, arXiv 2402.03779): each policy gets a probability by exponential weights of
its risk and its price, exp(-(risk + price * tokens) / temperature), and the price is what keeps the mean
at the budget. Here it adapts: it rises by what a request used above the target (online dual ascent). The
draw for a request looks at earlier requests only, never at its own trace, and every policy it can draw is
certified; so the loss is at most the largest alpha of the set, whatever the price does. Knows numbers and
names only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from desist.data.errors import CalibrationError

__all__ = ["Choice", "FleetBudget"]

_LIMIT = 60.0  # of price times tokens, in units of the target: beyond it the cheapest is all that is drawn


@dataclass(frozen=True, slots=True)
class Choice:
    """A certified policy: name, risk (its alpha), and a first guess of a request's mean tokens under it."""

    name: str
    risk: float
    tokens: float
    certified: bool = True


class FleetBudget:
    """Draws a policy for each request and learns from what the requests used.

    `target`: mean reasoning tokens of a request. `step`: how fast the price moves (share of a target's
    excess). `temperature`: how far equal policies are mixed. Raises CalibrationError for an empty set, an
    uncertified member, or numbers that make no sense.
    """

    def __init__(
        self, choices: Sequence[Choice], target: float, *, step: float = 0.02, temperature: float = 0.05
    ) -> None:
        loose = [choice.name for choice in choices if not choice.certified]
        if not choices or loose:
            found = f"{', '.join(loose)} is not certified" if loose else "there is no policy"
            raise CalibrationError(
                f"a fleet budget chooses among certified policies: {found}. Calibrate it first."
            )
        if not (target > 0 and 0 < step <= 1 and temperature > 0):
            raise CalibrationError(
                f"target {target}, step {step}, temperature {temperature}: give a positive target and "
                "temperature, and a step in (0, 1]."
            )
        self.choices = tuple(choices)
        self.target, self._step, self._temperature = target, step, temperature
        self._mean = {choice.name: float(choice.tokens) for choice in choices}
        self._seen = dict.fromkeys(self._mean, 0)
        self.price = 0.0
        self.n, self.total = 0, 0.0

    @property
    def probabilities(self) -> list[float]:
        """With which each policy is drawn next; sums to 1."""
        costs = [
            (choice.risk + self.price * self._mean[choice.name] / self.target) / self._temperature
            for choice in self.choices
        ]
        least = min(costs)
        weights = [math.exp(least - cost) for cost in costs]
        total = sum(weights)
        return [weight / total for weight in weights]

    @property
    def reachable(self) -> bool:
        """Whether some policy uses no more than the target; else only the cheapest is left."""
        return min(self._mean.values()) <= self.target <= max(self._mean.values())

    def draw(self, uniform: float) -> Choice:
        """The next request's policy; `uniform` in [0, 1) is drawn before its trace, independent of it."""
        for choice, share in zip(self.choices, self.probabilities, strict=True):
            if uniform < share:
                return choice
            uniform -= share
        return self.choices[-1]

    def observe(self, name: str, tokens: float) -> None:
        """Take what a request drawn as `name` used."""
        if name not in self._mean or not 0 <= tokens < math.inf:
            raise CalibrationError(f"{tokens} tokens of policy {name!r}: no such policy or number here.")
        self.n, self.total = self.n + 1, self.total + tokens
        self._seen[name] += 1
        # Recent requests count most, so that a change of traffic is followed.
        self._mean[name] += (tokens - self._mean[name]) / min(self._seen[name] + 1, 1000)
        moved = self.price + self._step * self._temperature * (tokens - self.target) / self.target
        self.price = max(-_LIMIT, min(_LIMIT, moved))

    def state(self) -> dict[str, Any]:
        return {"price": self.price, "n": self.n, "total": self.total, "mean": self._mean, "seen": self._seen}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`. Raises CalibrationError where it speaks of other policies."""
        if set(state["mean"]) != set(self._mean):
            raise CalibrationError("the saved fleet budget is one of other policies. Start it anew.")
        self.price, self.n, self.total = float(state["price"]), int(state["n"]), float(state["total"])
        self._mean = {name: float(value) for name, value in state["mean"].items()}
        self._seen = {name: int(value) for name, value in state["seen"].items()}
