"""What one client key may ask: ceilings that a client may go below, never above.

Knows modes, tolerated risk and budgets as values. Does not know keys, requests or how a control is
resolved: `keys` says whose a request is, `control` applies the ceilings.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from desist.controller.core import Mode

__all__ = ["EVERYONE", "Tenant", "lower_mode"]


def lower_mode(one: Mode, other: Mode) -> Mode:
    """The mode that does less: off < shadow < active."""
    order = get_args(Mode)
    return one if order.index(one) <= order.index(other) else other


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a request is, and what it may have. The defaults hold nothing back.

    `mode`: the highest mode of its requests. `alpha`: the largest tolerated risk. `budget`: the largest
    budget in reasoning tokens (None: no ceiling); it holds in every mode. What the server would give by
    default is lowered to these in silence; what a client asks above them is refused, naming the field.
    `group`: which group of a certificate its problems belong to (None: its certificates as a whole).
    `audits`: whether its requests may be audited. `separate_drift`: whether its traces have a drift detector
    of their own.
    """

    name: str = ""
    mode: Mode = "active"
    alpha: Fraction | None = None
    budget: int | None = None
    group: str | None = None
    audits: bool = True
    separate_drift: bool = False

    def allows_mode(self, mode: Mode) -> bool:
        return lower_mode(mode, self.mode) == mode

    def allows_alpha(self, alpha: Fraction) -> bool:
        return self.alpha is None or alpha <= self.alpha

    def allows_budget(self, budget: int | None) -> bool:
        """`budget` in reasoning tokens; None asks for no limit."""
        return self.budget is None or (budget is not None and budget <= self.budget)


EVERYONE = Tenant()
"""Who sends a request where no key is asked for, or where its key names nobody."""
