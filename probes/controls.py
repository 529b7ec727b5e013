"""Scores that need no hidden state: what a probe has to beat before it may claim to read the model's mind.

Each control is fitted on the training problems and judged on the held-out ones, like the probe. Knows
traces and labels only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from desist.data.answers import extract_answer
from desist.probes.labels import LabelledBoundaries
from desist.probes.metrics import auroc

__all__ = ["control_aurocs", "same_answer_run"]

Floats = npt.NDArray[np.float64]
_MAX_TEXTS = 20_000


def _texts(table: LabelledBoundaries) -> list[str]:
    """The reasoning up to each boundary."""
    chars = [{b.index: b.char for b in trace.boundaries} for trace in table.traces]
    return [
        table.traces[t].reasoning[: chars[t][int(i)]] for t, i in zip(table.trace, table.index, strict=True)
    ]


def same_answer_run(table: LabelledBoundaries) -> Floats | None:
    """How many boundaries in a row, this one included, gave the same forced answer [n] (0: no answer).

    The text-only rival "same answer k times". None where no forced answers were collected.
    """
    runs: dict[tuple[int, int], int] = {}
    for number, trace in enumerate(table.traces):
        before, run = None, 0
        for boundary in trace.boundaries:
            if boundary.forced_answer is None:
                return None
            answer = extract_answer(boundary.forced_answer)
            run = 0 if answer is None else run + 1 if answer == before else 1
            before = answer
            runs[number, boundary.index] = run
    return np.array(
        [runs[int(t), int(i)] for t, i in zip(table.trace, table.index, strict=True)], dtype=float
    )


def _fitted(train: Floats, label: npt.NDArray[np.bool_], held_out: Floats) -> Floats:
    """Probability of True by a logistic unit on standardised columns [n, F]."""
    unit = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(train, label)
    scores: Floats = unit.predict_proba(held_out)[:, 1]
    return scores


def _counts(column: npt.NDArray[np.int64]) -> Floats:
    values = column.astype(np.float64)
    return np.column_stack((values, np.log1p(values), values**2))


def _bag_of_tokens(train: LabelledBoundaries, held_out: LabelledBoundaries, seed: int) -> Floats:
    """Logistic regression on the counts of words, numbers and signs in the reasoning up to the boundary."""
    if len(train) > _MAX_TEXTS:
        chosen = np.random.default_rng(seed).choice(len(train), _MAX_TEXTS, replace=False)
        mask = np.zeros(len(train), dtype=bool)
        mask[chosen] = True
        train = train.select(mask)
    bag = CountVectorizer(token_pattern=r"[^\W\d]+|\d+|[^\w\s]", min_df=2, max_features=20_000)
    unit = make_pipeline(bag, LogisticRegression(C=0.1, max_iter=300))
    scores: Floats = unit.fit(_texts(train), train.label).predict_proba(_texts(held_out))[:, 1]
    return scores


def control_aurocs(
    train: LabelledBoundaries, held_out: LabelledBoundaries, *, seed: int = 0
) -> Mapping[str, float | None]:
    """AUROC of each control on the held-out boundaries. None: not to be had (no forced answers).

    position: reasoning tokens so far · cue_count: boundaries so far · length: characters of the problem and
    of the reasoning so far · bag_of_tokens: words so far · same_answer: see `same_answer_run`.
    """

    def lengths(table: LabelledBoundaries) -> Floats:
        problem = np.array([len(table.traces[t].problem) for t in table.trace], dtype=np.int64)
        reasoning = np.array([len(text) for text in _texts(table)], dtype=np.int64)
        return np.column_stack((_counts(problem), _counts(reasoning)))

    scores: dict[str, Floats | None] = {
        "position": _fitted(_counts(train.position), train.label, _counts(held_out.position)),
        "cue_count": _fitted(_counts(train.index), train.label, _counts(held_out.index)),
        "length": _fitted(lengths(train), train.label, lengths(held_out)),
        "bag_of_tokens": _bag_of_tokens(train, held_out, seed),
        "same_answer": same_answer_run(held_out),
    }
    return {name: None if score is None else auroc(held_out.label, score) for name, score in scores.items()}
