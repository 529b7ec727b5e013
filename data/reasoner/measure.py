"""What the reasoner must show, computed from finished traces.

Pure functions over texts and numbers: answers reached in a reasoning text, first-answer accuracy, headroom,
and whether the text up to a cue gives `consistent` away (bag of tokens against "same answer twice"). Knows
nothing of models or engines; whoever runs them hands the results over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_REACHED = re.compile(r"(?:answer is|That makes) (\d+)(?=[.,\n]|$)")
_WRITTEN = re.compile(r"\\boxed\{(\d+)\}")
_TOKENS = r"\d|[A-Za-z'-]+|\.\.\.|\n\n|\S"


@dataclass(frozen=True, slots=True)
class Reached:
    """An answer the reasoning states: its value, and the character at which the statement ends."""

    value: str
    end: int


@dataclass(frozen=True, slots=True)
class CueView:
    """One cue: problem and reasoning up to it, and whether stopping there is consistent."""

    problem_id: str
    problem: str
    reasoning: str
    consistent: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one set of traces.

    `auroc_same_count`: the rule made graded (how often the latest answer was stated so far).
    `bag_beats_rule`: 95 % interval of AUROC(bag of tokens) - AUROC(same answer twice), problems resampled.
    """

    n: int
    accuracy_full: float
    accuracy_first: float
    headroom: float
    truncated: float
    cues_per_trace: float
    consistent_share: float
    auroc_bag_of_tokens: float
    auroc_same_twice: float
    auroc_same_count: float
    bag_beats_rule: tuple[float, float]


@dataclass(frozen=True, slots=True)
class TraceResult:
    """One full run: gold answer, reasoning text, written answer, whether it hit the cap."""

    gold: str
    reasoning: str
    answer: str | None
    truncated: bool = False


def answers_reached(reasoning: str) -> list[Reached]:
    """Every answer stated in a reasoning text, in order."""
    return [Reached(match[1], match.end()) for match in _REACHED.finditer(reasoning)]


def written_value(answer: str) -> str | None:
    """The value in the last box of a written answer."""
    found: list[str] = _WRITTEN.findall(answer)
    return found[-1] if found else None


def same_answer_twice(reasoning: str) -> bool:
    """Whether the latest answer stated has been stated at least twice."""
    values = [reached.value for reached in answers_reached(reasoning)]
    return bool(values) and values.count(values[-1]) >= 2


def same_answer_count(reasoning: str) -> int:
    """How often the latest answer stated has been stated so far."""
    values = [reached.value for reached in answers_reached(reasoning)]
    return values.count(values[-1]) if values else 0


def headroom(reasoning: str) -> float:
    """Share of the text after the answer settled; 0 where no answer is stated."""
    reached = answers_reached(reasoning)
    if not reached:
        return 0.0
    settled = reached[-1].end
    for item in reversed(reached):
        if item.value != reached[-1].value:
            break
        settled = item.end
    return 1.0 - settled / len(reasoning)


def bag_of_tokens_scores(cues: Sequence[CueView], folds: int = 5) -> list[float]:
    """Out-of-fold scores of a logistic model on counts of the text up to each cue; folds are by problem."""
    import numpy as np
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    texts = [f"{cue.problem} | {cue.reasoning}" for cue in cues]
    counts = CountVectorizer(token_pattern=_TOKENS, lowercase=False, min_df=2).fit_transform(texts)
    labels = np.array([cue.consistent for cue in cues])
    scores = np.zeros(len(cues))
    groups = [cue.problem_id for cue in cues]
    for train, held in GroupKFold(folds).split(counts, labels, groups):
        if labels[train].all() or not labels[train].any():
            scores[held] = labels[train][0]  # one class only: nothing to learn from
            continue
        model = LogisticRegression(C=0.01, max_iter=1000).fit(counts[train], labels[train])
        scores[held] = model.predict_proba(counts[held])[:, 1]
    return [float(score) for score in scores]


def auroc(labels: Sequence[bool], scores: Sequence[float]) -> float:
    """Area under the ROC curve; nan where only one class is there."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores)) if len(set(labels)) == 2 else float("nan")


def auroc_difference(
    cues: Sequence[CueView], first: Sequence[float], second: Sequence[float], *, resamples: int = 400
) -> tuple[float, float]:
    """95 % bootstrap interval of AUROC(first) - AUROC(second); whole problems are resampled."""
    import numpy as np

    rows: dict[str, list[int]] = {}
    for place, cue in enumerate(cues):
        rows.setdefault(cue.problem_id, []).append(place)
    groups = [np.array(places) for places in rows.values()]
    labels, a, b = np.array([cue.consistent for cue in cues]), np.array(first), np.array(second)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(resamples):
        drawn = np.concatenate([groups[place] for place in rng.integers(len(groups), size=len(groups))])
        found.append(
            auroc(labels[drawn].tolist(), a[drawn].tolist())
            - auroc(labels[drawn].tolist(), b[drawn].tolist())
        )
    kept = np.array(found)[~np.isnan(found)]
    if len(kept) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(kept, [0.025, 0.975])
    return float(low), float(high)


def measure(traces: Sequence[TraceResult], cues: Sequence[CueView]) -> Measured:
    """All figures of a set of traces and the cues in them."""
    n = len(traces)
    firsts = [answers_reached(trace.reasoning)[:1] for trace in traces]
    labels = [cue.consistent for cue in cues]
    bag = bag_of_tokens_scores(cues)
    twice = [float(same_answer_twice(cue.reasoning)) for cue in cues]
    return Measured(
        n=n,
        accuracy_full=sum(trace.answer == trace.gold for trace in traces) / n,
        accuracy_first=sum(
            bool(first) and first[0].value == trace.gold for first, trace in zip(firsts, traces, strict=True)
        )
        / n,
        headroom=sum(headroom(trace.reasoning) for trace in traces) / n,
        truncated=sum(trace.truncated for trace in traces) / n,
        cues_per_trace=len(cues) / n,
        consistent_share=sum(labels) / max(len(labels), 1),
        auroc_bag_of_tokens=auroc(labels, bag),
        auroc_same_twice=auroc(labels, twice),
        auroc_same_count=auroc(labels, [float(same_answer_count(cue.reasoning)) for cue in cues]),
        bag_beats_rule=auroc_difference(cues, bag, twice),
    )
