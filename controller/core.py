"""The vocabulary of the decision: boundary, decision, stop reason, policy (design, sections 1 and 4).

Frozen values only; no rules. The rules are in `machine`, the places in `boundaries`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from desist.data.errors import ControlError
from desist.data.schema import BoundaryKind

__all__ = [
    "Action",
    "AnswerMode",
    "Boundary",
    "Control",
    "Decision",
    "GiveUp",
    "Mode",
    "Policy",
    "StopReason",
]

Mode = Literal["off", "shadow", "active"]
AnswerMode = Literal["write", "extract"]


class StopReason(enum.StrEnum):
    """Why thinking ended. `natural`: the model closed it; `length`: max_tokens; `none`: not ended."""

    PROBE = "probe"
    AGREEMENT = "agreement"
    BUDGET = "budget"
    LOOP = "loop"
    GIVE_UP = "give_up"
    MANUAL = "manual"
    NATURAL = "natural"
    LENGTH = "length"
    NONE = "none"


class Action(enum.StrEnum):
    """What to do now. `hold`: the rules would stop, but a hold-off zone is open."""

    CONTINUE = "continue"
    STOP = "stop"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place where a decision may be taken, seen live. `position` as in `BoundaryRecord`."""

    index: int
    position: int
    kind: BoundaryKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the stop machine decided at one place.

    `score` is the smoothed score that was compared (None: no evidence), `index` the boundary's index
    (None: between boundaries, budget only), `certified` whether the certificate covers this stop.
    """

    action: Action
    reason: StopReason
    position: int
    index: int | None = None
    score: float | None = None
    certified: bool = False

    @property
    def stops(self) -> bool:
        return self.action is Action.STOP


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The other side of a policy: when a problem is given up, since its answer would not come right.

    Give up iff the smoothed 1 - score > `above` (strict) at `patience` consecutive boundaries, each at or
    after `after` reasoning tokens; smoothing and patience are the policy's. `certified`: a certificate holds
    a risk of giving up problems that would have come right, for this threshold.
    """

    above: float
    after: int = 0
    certified: bool = False

    def __post_init__(self) -> None:
        if math.isnan(self.above):
            raise ControlError("the give-up threshold is not a number; give a number, or no give-up at all.")
        if self.after < 0:
            raise ControlError(f"give_up after is {self.after} reasoning tokens; give 0 or more.")


@dataclass(frozen=True, slots=True)
class Policy:
    """A stop policy: which scorer, which threshold, and the shape parameters that are calibrated with it.

    Stop iff the smoothed score > `lam` (strict) at `patience` consecutive boundaries, each at or after
    `warmup_tokens` reasoning tokens. `ema` is the weight of the newest score (1.0 = no smoothing).
    `lam` = None never stops. `reason` is reported when the scorer stops. `certified` says that a
    certificate stands behind (scorer, lam, patience, warm-up, smoothing). `give_up`: None never gives up.
    """

    scorer: str = "probe"
    lam: float | None = None
    patience: int = 1
    warmup_tokens: int = 0
    ema: float = 1.0
    reason: StopReason = StopReason.PROBE
    certified: bool = False
    give_up: GiveUp | None = None

    def uncertified(self) -> Policy:
        """The same decisions, none of them under a certificate."""
        give_up = None if self.give_up is None else replace(self.give_up, certified=False)
        return replace(self, certified=False, give_up=give_up)

    def __post_init__(self) -> None:
        if self.give_up is not None and self.lam is None:
            raise ControlError(
                "a policy that never stops (lam is None) cannot give up either; give both thresholds."
            )
        if self.lam is not None and math.isnan(self.lam):
            raise ControlError("the threshold lam is not a number; give a number, or None to never stop.")
        if self.patience < 1:
            raise ControlError(f"patience is {self.patience}; it counts boundaries, give at least 1.")
        if self.warmup_tokens < 0:
            raise ControlError(f"warmup_tokens is {self.warmup_tokens}; give 0 or more.")
        if not 0.0 < self.ema <= 1.0:
            raise ControlError(f"ema is {self.ema}; it is the newest score's weight, in (0, 1].")


SAME = -1
"""For `Control.lasting`: the budget is the request's own, and stays in every mode."""


@dataclass(frozen=True, slots=True)
class Control:
    """How one request is to be controlled, resolved from field, effort and server default.

    `budget`: hard limit on reasoning tokens (None = none). It acts in every mode; `mode` says what scores may
    do. `lasting`: the budget that is left when the mode is lowered from "active" while the request runs: the
    request's own limit, not what the server's settings make of "active" (None: none, SAME: all of it).
    """

    mode: Mode = "active"
    policy: Policy = Policy()
    budget: int | None = None
    answer: AnswerMode = "write"
    lasting: int | None = SAME

    def lowered(self, mode: Mode) -> Control:
        """The control with its mode lowered to at most `mode`; the same one where it is not above it."""
        modes = get_args(Mode)
        if modes.index(mode) >= modes.index(self.mode):
            return self
        kept = self.budget if self.mode != "active" or self.lasting == SAME else self.lasting
        return replace(self, mode=mode, budget=kept, lasting=SAME)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ControlError(f"mode is {self.mode!r}; choose one of {', '.join(get_args(Mode))}.")
        if self.answer not in get_args(AnswerMode):
            raise ControlError(f"answer is {self.answer!r}; choose one of {', '.join(get_args(AnswerMode))}.")
        if self.budget is not None and self.budget < 0:
            raise ControlError(f"the budget is {self.budget} reasoning tokens; give 0 or more, or None.")
        if self.lasting is not None and self.lasting < SAME:
            raise ControlError(
                f"the lasting budget is {self.lasting} reasoning tokens; give 0 or more, None, or SAME."
            )
