"""The trace: one reasoning run for one problem, and the boundaries in it (design, section 10).

Frozen types for use inside; `desist.data.records` validates and converts at the edge. Knows nothing
of files, models or policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = [
    "BOUNDARY_KINDS",
    "BoundaryKind",
    "BoundaryRecord",
    "Message",
    "Problem",
    "Sampling",
    "Trace",
]

BoundaryKind = Literal["cue", "paragraph", "every_n", "token"]
BOUNDARY_KINDS: tuple[BoundaryKind, ...] = ("cue", "paragraph", "every_n", "token")
Message = Mapping[str, Any]
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to be solved. `gold` is the right answer where known; `group` a Mondrian group."""

    problem_id: str
    text: str
    gold: str | None = None
    group: str | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the trace was sampled. `max_tokens` counts reasoning and answer together."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BoundaryRecord:
    """A place in a saved trace where a decision could have been taken.

    The place lies just AFTER the boundary's last token (the cue just read is kept): `position` is the
    number of reasoning tokens before the place (what a stop here would keep), `char` the number of
    characters of `Trace.reasoning` before it.
    `scores` maps scorer name to a score in [0, 1], higher = safer to stop. `forced_answer` is ONE draw
    of the production sampler after the hand-off (None: not collected; "" is an empty answer);
    `forced_tokens` counts the tokens a stop here would generate after `position`, hand-off included;
    `forced_confidence` is the geometric mean probability of the forced answer's tokens.
    """

    index: int
    position: int
    char: int
    kind: BoundaryKind
    text: str = ""
    scores: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    forced_answer: str | None = None
    forced_confidence: float | None = None
    forced_tokens: int | None = None
    consistent: bool | None = None
    correct: bool | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One reasoning run for one problem.

    `answer` is the text after the thinking block (not the extracted value). `truncated`: the run hit
    max_tokens. `provenance` keeps where the trace came from and what it was judged by (key `judge`).
    """

    trace_id: str
    problem_id: str
    model: str
    problem: str
    reasoning: str
    answer: str
    n_reasoning_tokens: int
    n_answer_tokens: int
    truncated: bool = False
    group: str | None = None
    dataset: str | None = None
    prompt: str | tuple[Message, ...] | None = None
    gold: str | None = None
    full_correct: bool | None = None
    sampling: Sampling = Sampling()
    boundaries: tuple[BoundaryRecord, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
