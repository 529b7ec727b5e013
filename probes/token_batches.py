"""Token rows and token labels of whole traces, in padded batches.

Knows token rows, boundaries and how a token is labelled; no network. A token's label says what a stop
there would do, as far as the collected boundaries tell: 0 before the first boundary whose forced answer is
right, 1 from it on ("first-correct-solution"), or the label of the last boundary passed ("state").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from desist.data.errors import ProbeError
from desist.probes.features import HiddenSet
from desist.probes.fit_mlp import Standardisation
from desist.probes.labels import LabelledBoundaries

__all__ = [
    "LabelStyle",
    "TokenLabels",
    "TokenLoader",
    "TokenTrace",
    "group_weights",
    "token_labels",
    "token_traces",
]

Floats32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
LabelStyle = Literal["first", "state"]
_STANDARDISE_TRACES = 1000


class TokenLabels(NamedTuple):
    """Of one trace with T tokens: `label` [T], `where` [n] token rows of its boundaries, `truth` [n]."""

    label: Floats32
    where: Ints
    truth: Bools


def token_labels(position: Ints, label: Bools, n_tokens: int, style: LabelStyle = "first") -> TokenLabels:
    """Label every token of a trace from its boundaries' `position` [n] and `label` [n], in order.

    The boundary with position p is decided on the state after p tokens: row p - 1.
    """
    where, truth = position[position > 0] - 1, label[position > 0]
    tokens = np.zeros(n_tokens, dtype=np.float32)
    if style == "first":
        if truth.any():
            tokens[where[np.argmax(truth)] :] = 1.0
    else:
        for row, value in zip(where, truth, strict=True):
            tokens[row:] = float(value)
    return TokenLabels(tokens, where, truth)


def group_weights(first_right: Sequence[bool | None]) -> Floats:
    """Weight per trace that gives right-first and wrong-then-right traces the same total.

    Without it "a first solution has just ended" is as good a sign as "the solution is right". `first_right`:
    True right at the first boundary, False wrong first and right later, None never right (weight 1).
    """
    kinds = np.array([-1 if kind is None else int(kind) for kind in first_right])
    counts = [(kinds == kind).sum() for kind in (0, 1)]
    weights = np.ones(len(kinds))
    if min(counts) > 0:
        for kind in (0, 1):
            weights[kinds == kind] = sum(counts) / (2 * counts[kind])
    return weights


class TokenTrace(NamedTuple):
    """One trace to learn from."""

    trace_id: str
    tokens: TokenLabels
    weight: float


def token_traces(table: LabelledBoundaries, style: LabelStyle) -> list[TokenTrace]:
    """The traces of `table` with their token labels and group weights."""
    parts = []
    for rows in np.split(np.arange(len(table)), np.flatnonzero(np.diff(table.trace)) + 1):
        rows = rows[np.argsort(table.position[rows], kind="stable")]
        trace = table.traces[table.trace[rows[0]]]
        labels = token_labels(table.position[rows], table.label[rows], trace.n_reasoning_tokens, style)
        parts.append((trace.trace_id, labels))
    kinds = [bool(labels.truth[0]) if labels.truth.any() else None for _, labels in parts]
    return [
        TokenTrace(trace_id, labels, float(weight))
        for (trace_id, labels), weight in zip(parts, group_weights(kinds), strict=True)
    ]


class TokenLoader:
    """Gives padded batches of standardised token rows. Reads the rows from disk each time."""

    def __init__(self, hidden: HiddenSet, columns: Sequence[int], batch_tokens: int) -> None:
        self._hidden, self._columns, self._batch_tokens = hidden, list(columns), batch_tokens
        self.scaling: Standardisation | None = None

    def rows(self, item: TokenTrace) -> torch.Tensor:
        """Rows [T, D] of one trace, standardised once `fit_scaling` has run."""
        rows = self._hidden.of_trace(item.trace_id)
        if len(rows) != len(item.tokens.label):
            raise ProbeError(
                f"trace {item.trace_id}: {len(rows)} token rows for {len(item.tokens.label)} reasoning "
                "tokens. The traces and the hidden states come from different runs: collect again."
            )
        tensor = torch.from_numpy(rows[:, self._columns])
        if self.scaling is None:
            return tensor
        mean, scale = self.scaling
        return torch.where(scale > 0, (tensor - mean) / scale.clamp_min(1e-30), 0.0)

    def fit_scaling(self, items: Sequence[TokenTrace]) -> Standardisation:
        """Take mean and scale from the tokens of (the first thousand of) `items`; later rows come scaled."""
        count = 0
        sums: tuple[torch.Tensor | float, torch.Tensor | float] = (0.0, 0.0)
        for item in items[:_STANDARDISE_TRACES]:
            rows = self.rows(item).double()
            sums = (sums[0] + rows.sum(0), sums[1] + rows.square().sum(0))
            count += len(rows)
        mean, second = (torch.as_tensor(part) / count for part in sums)
        scale = (second - mean.square()).clamp_min(0).sqrt()
        scale[scale < 1e-6 * scale.max()] = 0.0
        self.scaling = Standardisation(mean.float(), scale.float())
        return self.scaling

    def batches(
        self, items: Sequence[TokenTrace], rng: np.random.Generator | None
    ) -> Iterator[tuple[list[TokenTrace], torch.Tensor]]:
        """Batches of traces of like length, in random order if `rng` is given."""
        lengths = np.array([len(item.tokens.label) for item in items])
        noise = 1.0 if rng is None else rng.uniform(0.9, 1.1, len(items))
        groups: list[list[int]] = [[]]
        for number in np.argsort(lengths * noise, kind="stable"):
            longest = max([lengths[number], *(lengths[i] for i in groups[-1])])
            if groups[-1] and longest * (len(groups[-1]) + 1) > self._batch_tokens:
                groups.append([])
            groups[-1].append(int(number))
        order = range(len(groups)) if rng is None else rng.permutation(len(groups))
        for group in order:
            chosen = [items[i] for i in groups[group]]
            rows = [self.rows(item) for item in chosen]
            yield chosen, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
