"""Scores along a saved trace: the stored ones, and what text, position and forced answers alone can tell.

A `TraceScorer` gives one score in [0, 1] (higher = safer to stop) per boundary, or None for no evidence,
each from the past only. `needs_answers` marks scorers that in production would force an answer at every
boundary: their probe tokens are charged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from desist.calibration.losses import Loss, bad_if_stopped
from desist.data.answers import extract_answer
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = [
    "HALF_TOKENS",
    "TraceScorer",
    "agreement",
    "answer_confidence",
    "first_cue",
    "fit_position",
    "position",
    "random_stop",
    "stated_agreement",
    "stored",
]

Scores = Sequence[float | None]

# Position at which the position score is 1/2. Any monotone transform gives the same policies.
HALF_TOKENS = 512

_STATED = re.compile(
    r"(?:answer\s+is|answer:|that\s+makes|result\s+is|\\boxed\{)[\s:$\\(]*(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[A-J]\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TraceScorer:
    """A named function from a trace to its scores, one per boundary in order."""

    name: str
    score: Callable[[Trace], Scores]
    needs_answers: bool = False

    def __call__(self, trace: Trace) -> Scores:
        return self.score(trace)


def stored(name: str) -> TraceScorer:
    """The score saved under `name` at each boundary."""
    return TraceScorer(name, lambda trace: [boundary.scores.get(name) for boundary in trace.boundaries])


def position() -> TraceScorer:
    """Position alone, rising: a threshold on it is a fixed budget, taken at the next boundary."""
    return TraceScorer(
        "position",
        lambda trace: [b.position / (b.position + HALF_TOKENS) for b in trace.boundaries],
    )


def first_cue() -> TraceScorer:
    """1 at every cue, 0 elsewhere: stop at the first cue, whatever it says."""
    return TraceScorer("first_cue", lambda trace: [float(b.kind == "cue") for b in trace.boundaries])


def random_stop(seed: int) -> TraceScorer:
    """A uniform number per boundary, reproducible from the seed, the trace and the boundary's place."""

    def score(trace: Trace) -> Scores:
        rng = np.random.default_rng([seed, *trace.trace_id.encode()])
        return [float(rng.random()) for _ in trace.boundaries]

    return TraceScorer("random", score)


def agreement(*, free: bool = False) -> TraceScorer:
    """Consecutive equal forced answers: 1 - 1/k for a run of k. "Same answer twice" is a score above 0.

    `free`: charge nothing for reading the answers (a lower bound of what any reader of answers costs).
    Answers are compared as extracted text; an empty answer ends a run.
    """

    def score(trace: Trace) -> list[float | None]:
        if any(boundary.forced_answer is None for boundary in trace.boundaries):
            return [None] * len(trace.boundaries)
        return list(_runs(_value(boundary.forced_answer or "") for boundary in trace.boundaries))

    return TraceScorer("agreement_free" if free else "agreement", score, needs_answers=not free)


def stated_agreement() -> TraceScorer:
    """The same rule on the answers the reasoning itself states ("the answer is 12"): text alone, free."""

    def score(trace: Trace) -> list[float]:
        stated = [(m.end(), m.group(1).replace(",", "")) for m in _STATED.finditer(trace.reasoning)]
        runs = list(_runs(value for _, value in stated))
        ends = [end for end, _ in stated]
        scores = []
        for boundary in trace.boundaries:
            seen = int(np.searchsorted(ends, boundary.char, side="right"))
            scores.append(runs[seen - 1] if seen else 0.0)
        return scores

    return TraceScorer("stated_agreement", score)


def answer_confidence() -> TraceScorer:
    """Geometric mean probability of the forced answer's tokens; an answer is forced at every boundary."""
    return TraceScorer(
        "forced_confidence",
        lambda trace: [boundary.forced_confidence for boundary in trace.boundaries],
        needs_answers=True,
    )


def fit_position(traces: Iterable[Trace], loss: Loss) -> TraceScorer:
    """A logistic probe of position and count of boundaries alone, fitted on TRAINING traces."""
    from sklearn.linear_model import LogisticRegression

    rows, good = [], []
    for trace in traces:
        for place, boundary in enumerate(trace.boundaries):
            bad = bad_if_stopped(trace, boundary, loss)
            if bad is not None:
                rows.append(_place(boundary.position, place))
                good.append(not bad)
    if len(set(good)) < 2:
        raise CalibrationError(
            f"{len(good)} labelled training boundaries are all of one class. "
            "Give training traces with both good and bad stops, or none at all."
        )
    model = LogisticRegression().fit(np.asarray(rows), np.asarray(good))

    def score(trace: Trace) -> list[float]:
        if not trace.boundaries:
            return []
        places = np.asarray([_place(b.position, i) for i, b in enumerate(trace.boundaries)])
        scores: list[float] = model.predict_proba(places)[:, 1].tolist()
        return scores

    return TraceScorer("position_probe", score)


def _place(position_tokens: int, place: int) -> tuple[float, float, float]:
    return (math.log1p(position_tokens), position_tokens / HALF_TOKENS, math.log1p(place))


def _value(answer: str) -> str:
    """The answer in a forced answer's text, as text; what cannot be read stands for itself."""
    return "".join((extract_answer(answer) or answer).split())


def _runs(values: Iterable[str]) -> Iterable[float]:
    length, last = 0, None
    for value in values:
        length = (length + 1 if value == last else 1) if value else 0
        last = value
        yield 1 - 1 / length if length else 0.0
