"""What a certificate on one's own traffic will cost, before anything is spent, and when it pays.

Arithmetic on counts only: problems to be run, tokens, hours, disk, and the requests after which the tokens
spent have come back. Knows no engine and no traces beyond their lengths. Every figure that was not measured
is an assumption, and is listed as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from desist.calibration.pac import needed_n, smallest_n
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["Estimate", "Lengths", "Onboarding", "estimate", "lengths_of"]

_CHARACTERS_PER_TOKEN = 4
_BOUNDARY_BYTES = 260  # one boundary as JSON: scores, forced answer, labels


@dataclass(frozen=True, slots=True)
class Lengths:
    """Means of one trace: tokens of reasoning and answer, boundaries, and tokens of one forced exit."""

    reasoning: float
    answer: float
    boundaries: float
    forced: float

    def __post_init__(self) -> None:
        for name in ("reasoning", "answer", "boundaries", "forced"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise CalibrationError(f"'{name}' is {value}; give a mean of 0 or more.")
        if self.reasoning <= 0:
            raise CalibrationError("'reasoning' is 0; a model that does not think has nothing to be stopped.")


@dataclass(frozen=True, slots=True)
class Onboarding:
    """The plan. `expected_loss`: the share of problems that a careful threshold is hoped to lose.

    `training`: problems for the probe, 0 where one is there already. `held_out`: for a second look, as a
    share of the calibration problems. `row_bytes`: hidden states kept at one boundary (taps * width * bytes),
    0: none are kept. `saved`: the share of reasoning tokens that stops are hoped to save; `audits`: the share
    of requests that run on all the same.
    """

    alpha: Fraction
    delta: Fraction
    lengths: Lengths
    expected_loss: float = 0.0
    training: int = 1000
    held_out: float = 0.25
    row_bytes: int = 0
    tokens_per_s: float | None = None
    saved: float = 0.25
    audits: float = 0.01

    def __post_init__(self) -> None:
        for name in ("expected_loss", "held_out", "saved", "audits"):
            if not 0 <= getattr(self, name) <= 1:
                raise CalibrationError(f"'{name}' is {getattr(self, name)}; give a share in [0, 1].")
        for name in ("training", "row_bytes"):
            if getattr(self, name) < 0:
                raise CalibrationError(f"'{name}' is {getattr(self, name)}; give 0 or more.")
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise CalibrationError(f"'tokens_per_s' is {self.tokens_per_s}; give more than 0.")


@dataclass(frozen=True, slots=True)
class Estimate:
    """`fewest`: problems below which nothing can be certified at all. `calibration` is None where the
    expected loss is not below alpha: no number of problems would do, and nothing further is estimated.

    Tokens are generated ones; `forced_tokens` those of the forced exits at every boundary.
    `recalibration_tokens`: what a new certificate for the same probe costs. `net_saved`: tokens a request
    saves, audits paid; the spent ones have come back after `pays_after` requests (None: never).
    """

    fewest: int
    training: int
    calibration: int | None
    held_out: int = 0
    full_tokens: int = 0
    forced_tokens: int = 0
    recalibration_tokens: int = 0
    hours: float | None = None
    disk_bytes: int = 0
    net_saved: float = 0.0
    pays_after: int | None = None

    @property
    def problems(self) -> int:
        """All problems that must be run."""
        return self.training + (self.calibration or 0) + self.held_out

    @property
    def tokens(self) -> int:
        """All tokens that must be generated."""
        return self.full_tokens + self.forced_tokens


def estimate(plan: Onboarding) -> Estimate:
    """The cost of the plan. Full runs make reasoning and answer once, forced exits one short answer a
    boundary.

    Forced exits are taken to find their prefix cached, as in one engine; without a cache each reads its
    prefix again.
    """
    fewest = smallest_n(plan.alpha, plan.delta)
    needed = needed_n(plan.expected_loss, plan.alpha, plan.delta, above=fewest - 1)
    if needed is None:
        return Estimate(fewest, plan.training, None)
    lengths, held_out = plan.lengths, math.ceil(plan.held_out * needed)
    problems = plan.training + needed + held_out
    each_full, each_forced = lengths.reasoning + lengths.answer, lengths.boundaries * lengths.forced
    full, forced = round(problems * each_full), round(problems * each_forced)
    kept = lengths.boundaries * (plan.row_bytes + _BOUNDARY_BYTES) + _CHARACTERS_PER_TOKEN * each_full
    # An audited request saves nothing and, at most, answers twice.
    net = (1 - plan.audits) * plan.saved * lengths.reasoning - plan.audits * lengths.answer
    return Estimate(
        fewest,
        plan.training,
        needed,
        held_out,
        full,
        forced,
        round((needed + held_out) * (each_full + each_forced)),
        None if plan.tokens_per_s is None else (full + forced) / plan.tokens_per_s / 3600,
        math.ceil(problems * kept),
        net,
        math.ceil((full + forced) / net) if net > 0 else None,
    )


def lengths_of(traces: Sequence[Trace], forced: float | None = None) -> Lengths:
    """The means of some traces. `forced`: tokens of a forced exit, where the traces do not tell.

    Raises `CalibrationError` where there are no traces, or nothing tells the forced exits' length.
    """
    if not traces:
        raise CalibrationError("there are no traces to take lengths from. Give a file that holds some.")
    told = [b.forced_tokens for t in traces for b in t.boundaries if b.forced_tokens is not None]
    if told:
        forced = sum(told) / len(told)
    if forced is None:
        raise CalibrationError("the traces do not tell 'forced_tokens'. Give --forced-tokens.")
    return Lengths(
        sum(t.n_reasoning_tokens for t in traces) / len(traces),
        sum(t.n_answer_tokens for t in traces) / len(traces),
        sum(len(t.boundaries) for t in traces) / len(traces),
        forced,
    )
