"""Why nothing was certified: the reason, the risk that failed, what would help. Words and numbers only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from desist.calibration.exact import Level, exact_text
from desist.calibration.plan import Plan
from desist.controller.core import Policy

__all__ = ["CannotCertify", "FailedRisk"]


class FailedRisk(BaseModel):
    """One of several risks that could not be held.

    `risk`: its loss, or "giving up"; `n_bad`: losses at the most careful threshold that stops anything;
    `needed_n`: problems that would do (None: its rate itself is not below `alpha`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    risk: str
    alpha: Level
    n_bad: int = 0
    needed_n: int | None = None

    @property
    def name(self) -> str:
        return f"{self.risk} at most {exact_text(self.alpha * 100)} %"


class CannotCertify(Plan):
    """No threshold could be certified; the only policy left never stops.

    `reason`: "too_few" (fewer than `needed_n` problems: nothing can be certified), "too_risky" (even the
    most careful threshold that stops anything fails too often; `needed_n` estimates how many problems
    would do, None where its risk itself is not below alpha), "no_stops" (the scorer never crosses a
    threshold), "no_gain" (what could be certified saves no tokens), "no_guarantee" (the method promises
    nothing per trace), "unjudgeable" (the judge could not decide most stops) or "floor" (without any stop
    the model disagrees with itself at least as often as alpha: see `floor`).
    `n_bad`: losses at the most careful threshold that stops anything. `floor`: name and share. "shift": after
    weighting the problems are worth too few (`n_effective`), or one new problem may outweigh them. `failed`:
    of several risks those that failed, each with its own alpha and its own needed n.
    """

    reason: Literal[
        "too_few", "too_risky", "no_stops", "no_gain", "no_guarantee", "unjudgeable", "floor", "shift"
    ]
    n: int
    n_bad: int = 0
    needed_n: int | None = None
    floor: tuple[str, float] | None = None
    n_effective: float | None = None
    failed: tuple[FailedRisk, ...] = ()
    certified: Literal[False] = False

    @property
    def message(self) -> str:
        """One line for people: what failed and what would help."""
        if self.reason == "too_few":
            each = ", ".join(f"{one.name} needs {one.needed_n}" for one in self.failed)
            text = f"cannot certify, need n >= {self.needed_n} problems, have {self.n}"
            return f"{text} ({each})" if each else text
        if self.reason == "no_stops":
            return f"cannot certify: the score '{self.scorer}' is 0 on all {self.n} problems, nothing stops"
        if self.reason == "no_guarantee":
            return f"method '{self.method}' gives no guarantee per trace: for comparison only, nothing stops"
        if self.reason == "unjudgeable":
            return "cannot certify: the judge could not decide most stops, so nothing stops (shadow)"
        if self.reason == "shift":
            heaviest = (
                "" if self.max_weight is None else f", and a new one weighs up to {self.max_weight:.4g}"
            )
            return (
                f"cannot certify: the {self.n} problems are worth {self.n_effective or 0:.1f} after weighting"
                f"{heaviest}: too few for {self._strictest}, need n >= {self.needed_n} of this "
                "kind (estimated), or audits of the new traffic"
            )
        if self.floor is not None:
            name, share = self.floor
            alpha = self.failed[0].alpha if self.failed else self.alpha
            return (
                f"cannot certify consistency: the floor '{name}' is {share:.6g}, not below alpha "
                f"{float(alpha):.6g}: without any stop the model disagrees with itself so often. "
                "Certify harm, or take a larger alpha"
            )
        if self.reason == "no_gain":
            return (
                "cannot certify a saving: the thresholds that are safe enough cost more tokens than they save"
            )
        if self.failed:
            return "; ".join(
                _too_risky(f" {one.name}", one.n_bad, self.n, one.needed_n) for one in self.failed
            )
        return _too_risky("", self.n_bad, self.n, self.needed_n)

    @property
    def _strictest(self) -> str:
        return self.failed[0].name if self.failed else f"alpha {float(self.alpha):.6g}"

    def policy(self) -> Policy:
        """The policy that never stops."""
        return self.shape(None)


def _too_risky(what: str, bad: int, n: int, needed: int | None) -> str:
    more = f"need n >= {needed} (estimated)" if needed else "a better probe or a larger alpha is needed"
    return (
        f"cannot certify{what}: {bad} of {n} problems lost at the most careful threshold that stops; {more}"
    )
