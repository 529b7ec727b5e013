"""Scorers: anything that gives a score at a boundary of a saved trace. Higher = safer to stop.

These read what a trace stores (scores, forced answers, positions) and only boundaries up to the one
being scored. Live scorers (probes) sit in the engines and hand their scores to the same stop machine.
Knows no thresholds and no policies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from desist.data.errors import ControlError, NotOffered
from desist.data.schema import BoundaryRecord, Trace

__all__ = [
    "CueCount",
    "FirstCue",
    "ForcedConfidence",
    "Need",
    "Position",
    "RandomScore",
    "SameAnswer",
    "Scorer",
    "StoredScore",
    "check_offers",
]

Need = Literal["text", "logprobs", "hidden", "forced_answer", "continuations"]
_NOTHING: frozenset[Need] = frozenset()
_TRIALS: frozenset[Need] = frozenset({"forced_answer"})


class Scorer(Protocol):
    """A score at a boundary, what it needs of an engine, and what it costs."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[Need]: ...

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float | None:
        """The score in [0, 1], or None: no evidence here. Reads nothing after `boundary`."""

    def cost(self, trace: Trace, boundary: BoundaryRecord | None) -> int:
        """Tokens generated for scoring alone when thinking stops at `boundary` (None: never).

        What the stop itself generates (hand-off and answer) is not part of it.
        """


def check_offers(needs: Iterable[str], offers: Iterable[str], scorer: str = "the policy") -> None:
    """Raise `NotOffered`, naming what is missing, unless the engine offers all that is needed."""
    offered = frozenset(offers)
    missing = sorted(frozenset(needs) - offered)
    if missing:
        raise NotOffered(
            f"{scorer} needs {', '.join(missing)}, which this engine does not offer "
            f"(it offers {', '.join(sorted(offered)) or 'nothing'}). "
            "Choose another policy, or an engine that offers it."
        )


def _past(trace: Trace, boundary: BoundaryRecord) -> list[BoundaryRecord]:
    """The boundaries up to and including this one."""
    return [record for record in trace.boundaries if record.index <= boundary.index]


def _trial_tokens(trace: Trace, boundary: BoundaryRecord | None) -> int:
    """Tokens of the forced answers before this boundary: each was generated, none was used."""
    return sum(
        record.forced_tokens or 0
        for record in trace.boundaries
        if boundary is None or record.index < boundary.index
    )


class _Free:
    """A scorer that generates nothing."""

    __slots__ = ()

    def cost(self, trace: Trace, boundary: BoundaryRecord | None) -> int:
        return 0


class _Trials:
    """A scorer that forces an answer at every boundary it looks at."""

    __slots__ = ()

    def cost(self, trace: Trace, boundary: BoundaryRecord | None) -> int:
        return _trial_tokens(trace, boundary)


@dataclass(frozen=True, slots=True)
class StoredScore(_Free):
    """A score that was collected with the trace, for example a probe's."""

    name: str
    needs: frozenset[Need] = frozenset({"hidden"})

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float | None:
        return boundary.scores.get(self.name)


@dataclass(frozen=True, slots=True)
class Position(_Free):
    """Position alone, p / (p + scale): what a scorer must beat. Causal: the length is not known."""

    scale: float = 1000.0
    name: str = "position"
    needs: frozenset[Need] = _NOTHING

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float:
        return boundary.position / (boundary.position + self.scale)


@dataclass(frozen=True, slots=True)
class CueCount(_Free):
    """The number of cues read so far, n / (n + scale)."""

    scale: float = 10.0
    name: str = "cue_count"
    needs: frozenset[Need] = frozenset({"text"})

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float:
        cues = sum(record.kind == "cue" for record in _past(trace, boundary))
        return cues / (cues + self.scale)


@dataclass(frozen=True, slots=True)
class FirstCue(_Free):
    """1 at a cue, 0 elsewhere: with any threshold in [0, 1) the first cue stops."""

    name: str = "first_cue"
    needs: frozenset[Need] = frozenset({"text"})

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float:
        return float(boundary.kind == "cue")


@dataclass(frozen=True, slots=True)
class RandomScore(_Free):
    """A uniform draw in [0, 1), fixed by seed, trace and boundary: the blind rival."""

    seed: int = 0
    name: str = "random"
    needs: frozenset[Need] = _NOTHING

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float:
        drawn = hashlib.sha256(f"{self.seed}:{trace.trace_id}:{boundary.index}".encode()).digest()
        return (int.from_bytes(drawn[:8]) >> 11) / 2**53


@dataclass(frozen=True, slots=True)
class ForcedConfidence(_Trials):
    """Geometric mean probability of the forced answer's tokens (DEER, arXiv 2504.15895, in spirit)."""

    name: str = "forced_confidence"
    needs: frozenset[Need] = frozenset({"forced_answer", "logprobs"})

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float | None:
        return boundary.forced_confidence


def _extract(text: str) -> str | None:
    from desist.data.answers import extract_answer

    return extract_answer(text)


def _equal(left: str, right: str) -> bool:
    from desist.data.judging import answers_equal

    return answers_equal(left, right)


@dataclass(frozen=True, slots=True)
class SameAnswer(_Trials):
    """1 if the last `k` forced answers are the same, else 0 (Dynasor-CoT, arXiv 2412.20993, in spirit).

    A text-only rival: it needs no hidden state, but pays for a forced answer at every boundary. A
    boundary whose answer cannot be read breaks the run; None where no answer was collected.
    """

    k: int = 2
    extract: Callable[[str], str | None] = field(default=_extract, repr=False)
    equal: Callable[[str, str], bool] = field(default=_equal, repr=False)
    needs: frozenset[Need] = _TRIALS

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ControlError(f"'same answer k times' with k = {self.k}; give k >= 1.")

    @property
    def name(self) -> str:
        return f"same_answer_{self.k}"

    def __call__(self, trace: Trace, boundary: BoundaryRecord) -> float | None:
        if boundary.forced_answer is None:
            return None
        newest = [record.forced_answer for record in _past(trace, boundary)][-self.k :]
        answers = [self.extract(text) if text else None for text in newest]
        if len(answers) < self.k or not all(answers):
            return 0.0
        first = answers[0] or ""
        return float(all(self.equal(first, answer or "") for answer in answers[1:]))
