"""The plan of a calibration: everything that is declared before any score is looked at.

The plan is the part of a certificate that no data decide. Knows the statement it leads to, in words.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from desist.calibration.exact import Level, exact_text
from desist.calibration.losses import Loss, Truncated
from desist.controller.core import AnswerMode, Policy, StopReason
from desist.data.schema import BoundaryKind

__all__ = ["METHODS", "Method", "Plan", "voids"]

Method = Literal["ltt", "pac"]
METHODS: tuple[Method, ...] = get_args(Method)


class Plan(BaseModel):
    """What is certified, and how.

    `alpha`: tolerated risk; `delta`: probability that the certificate is wrong; both exact. `method`:
    "ltt" (fixed-sequence Learn then Test, stronger where answers wobble) or "pac" (order statistic of the
    critical score, covers every higher threshold). `patience`, `warmup_tokens` and `ema` are the policy's
    shape; `kinds` the boundary kinds it decides at; `seed` picks one trace of each problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    truncated: Truncated = "no_answer"
    group: str | None = None
    seed: int = 0

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

    def statement(self, n: int) -> str:
        """The guarantee in one sentence, for `n` calibration problems."""
        event = {
            "consistency": "the answer after stopping differs from the full run's answer",
            "harm": "the full run's answer is right and the answer after stopping is wrong",
        }[self.loss]
        confidence = _percent(1 - self.delta)
        where = f" of group '{self.group}'" if self.group else ""
        return (
            f"With probability at least {confidence} over the {n} calibration problems, for a new problem"
            f"{where} from the same distribution, run with the same model, template, sampler, probe and "
            f"policy, the probability that {event} is at most {_percent(self.alpha)}."
        )


def voids(plan: Plan) -> tuple[str, ...]:
    """What makes the statement void, as sentences for a report."""
    return (
        "Problems of another kind than the calibration problems: the statement is an average over problems "
        "like those, never a promise about a single one.",
        "Another model, tokenizer, chat template, number format, sampler, token limit, hand-off, cue set, "
        f"judge or probe, or another answer mode than '{plan.answer_mode}': each changes answers or scores.",
        "A lower threshold, or another patience, warm-up or smoothing than the ones calibrated.",
        "Calibration problems that the probe was trained on, or repeats of one problem counted as several.",
        "Hints, steering or budget messages that change the reasoning before the stop.",
        "Trying several plans on these calibration problems and keeping the best one.",
        "Stops for other reasons (budget, loop, give-up, manual): they are outside the statement.",
    )


def _percent(value: Fraction) -> str:
    return f"{exact_text(value * 100)} %"
