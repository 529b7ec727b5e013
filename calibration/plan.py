"""The plan of a calibration: everything that is declared before any score is looked at.

The plan is the part of a certificate that no data decide. Knows which declarations fit together; the
statement that they lead to is in `statement`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from desist.calibration.exact import Level
from desist.calibration.group_keys import GroupRule
from desist.calibration.losses import GRADED, Loss, Truncated
from desist.calibration.statement import guarantee_text, void_sentences
from desist.controller.core import AnswerMode, Policy, StopReason
from desist.data.errors import CalibrationError
from desist.data.schema import BoundaryKind

__all__ = [
    "GUARANTEES",
    "METHODS",
    "SAMPLES",
    "TRACE_SCORES",
    "DeltaSplit",
    "Guarantee",
    "Method",
    "Plan",
    "Risk",
    "Samples",
    "TraceScore",
    "voids",
]

Method = Literal["ltt", "pac", "pareto", "split", "crc", "weighted", "cue-level"]
METHODS: tuple[Method, ...] = get_args(Method)
Guarantee = Literal["pac", "mean", "none"]
TraceScore = Literal["critical", "maximum", "first-crossing"]
TRACE_SCORES: tuple[TraceScore, ...] = get_args(TraceScore)
Samples = Literal["one", "worst"]
SAMPLES: tuple[Samples, ...] = get_args(Samples)
DeltaSplit = Literal["joint", "each"]

GUARANTEES: dict[Method, Guarantee] = {
    "ltt": "pac",
    "pac": "pac",
    "pareto": "pac",
    "split": "mean",
    "crc": "mean",
    "weighted": "mean",
    "cue-level": "none",
}
"""What each method claims: "pac", risk at most alpha with probability 1 - delta over calibrations; "mean",
the risk averaged over calibrations too is at most alpha (no delta); "none", nothing per trace."""

_ORDER_STATISTIC = frozenset(
    {"pac", "split", "weighted"}
)  # they need one number per trace, so losses of 0 or 1
_MONOTONE = frozenset({*_ORDER_STATISTIC, "crc"})  # they need a loss that never rises with the threshold


class Risk(BaseModel):
    """A further risk to be controlled together with the plan's own: its loss and its own exact level."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: Loss
    alpha: Level


class Plan(BaseModel):
    """What is certified, and how.

    `alpha`: tolerated risk; `delta`: probability that the certificate is wrong; both exact. `method`:
    "ltt" (fixed-sequence Learn then Test, stronger where answers wobble), "pac" (order statistic of the
    trace score, covers every higher threshold), "pareto" (Learn then Test over threshold and shape, the
    order learned on a part of the problems), "split" and "crc" (split conformal, conformal risk control: on
    average over calibrations only), "weighted" (split conformal for a later traffic of other prompts) or
    "cue-level" (no guarantee per trace). `patience`, `warmup_tokens` and `ema` are the policy's shape (for
    "pareto" the one that was found); `kinds` the boundary kinds it decides at; `seed` picks one trace of each
    problem.

    `trace_score`: the number that stands for a trace (None: the method's own, see `score_of_trace`).
    `samples`: of several traces of one problem, "one" drawn by `seed` counts, or the "worst". `risks`:
    further risks that hold at the same time. `give_up_alpha`: the risk of giving up a problem that would
    have come right, with a threshold of its own; `give_up_after`: tokens before which no problem is given
    up. `group_by`, `n_groups`, `delta_split`: how the groups were formed, how many are calibrated, and
    whether their statements hold together ("joint", delta is divided) or one at a time ("each").
    `group_rule`: how a new problem is put into its group.
    `weights`: with "weighted", the key of `provenance` that holds each problem's weight (how much likelier it
    is in the later traffic); `max_weight`: the largest one that a new problem may have, with a mean of 1 over
    the calibration problems (None: the largest among them).

    Raises CalibrationError (a ValueError) where declarations do not fit together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    added: ClassVar[tuple[str, ...]] = (
        "trace_score",
        "samples",
        "risks",
        "give_up_alpha",
        "give_up_after",
        "group_by",
        "n_groups",
        "delta_split",
        "group_rule",
        "weights",
        "max_weight",
    )
    """Fields younger than the first certificates: left out of files (and digests) where at their default."""

    alpha: Level
    delta: Level
    loss: Loss
    scorer: str = Field(min_length=1)
    method: Method = "ltt"
    patience: int = Field(default=1, ge=1)
    warmup_tokens: int = Field(default=0, ge=0)
    ema: float = Field(default=1.0, gt=0, le=1)
    kinds: tuple[BoundaryKind, ...] | None = None
    answer_mode: AnswerMode = "write"
    judge: str = "math"
    truncated: Truncated = "answered"
    group: str | None = None
    seed: int = 0
    trace_score: TraceScore | None = None
    samples: Samples = "one"
    risks: tuple[Risk, ...] = ()
    give_up_alpha: Level | None = None
    give_up_after: int = Field(default=0, ge=0)
    group_by: str | None = None
    n_groups: int = Field(default=1, ge=1)
    delta_split: DeltaSplit | None = None
    group_rule: GroupRule | None = None
    weights: str | None = None
    max_weight: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        single = self.method in _ORDER_STATISTIC
        if self.method in _MONOTONE and self.trace_score == "first-crossing":
            raise CalibrationError(
                f"method '{self.method}' needs a loss that never rises with the threshold, and trace_score "
                "'first-crossing' may. Use 'critical' or 'maximum', or the method 'ltt'."
            )
        losses = (self.loss, *(risk.loss for risk in self.risks))
        if GRADED & set(losses) and (single or self.method == "cue-level" or self.samples == "worst"):
            raise CalibrationError(
                f"loss '{next(loss for loss in losses if loss in GRADED)}' is not 0 or 1, which method "
                f"'{self.method}' with samples '{self.samples}' needs. Use 'ltt' or 'crc' with 'one'."
            )
        if GRADED & set(losses) and self.trace_score == "maximum":
            raise CalibrationError("trace_score 'maximum' is for losses of 0 or 1. Use 'critical'.")
        if len(set(losses)) != len(losses):
            raise CalibrationError(f"the losses {', '.join(losses)} repeat. Give each loss one alpha.")
        if self.give_up_alpha is not None and self.method not in ("ltt", "pac"):
            raise CalibrationError(f"give_up_alpha goes with 'ltt' and 'pac', not with '{self.method}'.")
        if (self.method == "weighted") != (self.weights is not None):
            raise CalibrationError(
                "method 'weighted' and weights go together. Give both (a key of provenance), or neither."
            )
        if self.method == "weighted" and self.samples == "worst":
            raise CalibrationError("method 'weighted' takes one sample of each problem. Use samples 'one'.")
        if self.method == "pareto" and self.samples == "worst":
            raise CalibrationError("method 'pareto' takes one sample of each problem. Use samples 'one'.")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        for name in self.added:
            if name in document and getattr(self, name) == fields[name].default:
                del document[name]
        return document

    @property
    def guarantee(self) -> Guarantee:
        """What the method claims; see `GUARANTEES`."""
        return GUARANTEES[self.method]

    @property
    def score_of_trace(self) -> TraceScore:
        """The trace score in use: declared, or the method's own."""
        if self.trace_score is not None:
            return self.trace_score
        return "first-crossing" if self.method in ("ltt", "pareto") else "critical"

    @property
    def side_delta(self) -> Level:
        """The delta of the stop's statement: all of it, or half where giving up is certified as well."""
        return self.delta if self.give_up_alpha is None else self.delta / 2

    def shape(self, lam: float | None = None, *, certified: bool = False) -> Policy:
        """The policy with this plan's shape and the threshold `lam` (None: never stops)."""
        return Policy(
            scorer=self.scorer,
            lam=lam,
            patience=self.patience,
            warmup_tokens=self.warmup_tokens,
            ema=self.ema,
            reason=StopReason.PROBE,
            certified=certified,
        )

    def statement(self, n: int, effective: float = 0.0) -> str:
        """The guarantee in plain sentences, for `n` calibration problems, worth `effective` if weighted."""
        return guarantee_text(
            guarantee=self.guarantee,
            n=n,
            risks=((self.loss, self.alpha), *((risk.loss, risk.alpha) for risk in self.risks)),
            delta=self.delta,
            give_up=self.give_up_alpha,
            worst=self.samples == "worst",
            truncated=self.truncated,
            group=self.group,
            group_by=self.group_by,
            n_groups=self.n_groups,
            joint=self.delta_split != "each",
            pooled=() if self.group_rule is None else self.group_rule.pooled,
            weighted=None if self.weights is None else (effective, self.max_weight),
        )


def voids(plan: Plan) -> tuple[str, ...]:
    """What makes the statement void, as sentences for a report."""
    gives_up, weighted = plan.give_up_alpha is not None, plan.weights is not None
    return void_sentences(plan.answer_mode, gives_up=gives_up, weighted=weighted)
