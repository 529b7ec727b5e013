"""Training rows: a problem and a trace become token ids and one loss weight per token.

A weight of 0 means that the token is read but not trained on (the prompt, a spliced hand-off, muted
results); the tokens right after a boundary weigh more, so that the state at the boundary learns what
comes. Knows nothing of batches or models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from desist.data.reasoner.arithmetic import is_hard, result
from desist.data.reasoner.derivation import Boundary, Trace, write_trace
from desist.data.reasoner.handoff import (
    ANSWER_CLOSING,
    ANSWER_PHRASINGS,
    HANDOFF_EXTRACT,
    HANDOFF_WRITE,
    NATURAL_CLOSE,
    PAD,
    THINK_CLOSE,
    THINK_OPEN,
    TURN_END,
    TURN_START,
)
from desist.data.reasoner.problems import WordProblem
from desist.data.reasoner.recipe import CLEAN, DENSE, SERVED, Recipe

DECISION_WEIGHT = 4.0
SOFTENED_WEIGHT = 0.3


class Encoder(Protocol):
    """What rows need of a tokenizer."""

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and for each the character at which it begins."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ids and weights of one training row; `weights[i]` is the weight of predicting `ids[i]`."""

    ids: list[int]
    weights: list[float]


class FastEncoder:
    """The tokenizer, seen as rows need it."""

    def __init__(self, tokenizer: object) -> None:
        self._backend = tokenizer.backend_tokenizer  # type: ignore[attr-defined]

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and for each the character at which it begins."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]


def prompt(question: str, *, thinking: bool = True) -> str:
    """The rendered prompt of a one-turn chat; equals what the chat template renders."""
    tail = f"{THINK_OPEN}\n" if thinking else f"{THINK_OPEN}\n\n{THINK_CLOSE}\n\n"
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{tail}"


def written_answer(rng: random.Random, value: object) -> str:
    """The answer as it stands after thinking."""
    return rng.choice(ANSWER_PHRASINGS).format(value=value)


class RowMaker:
    """Makes rows of the four kinds from a seed."""

    def __init__(self, encoder: Encoder, rng: random.Random) -> None:
        self.encoder = encoder
        self.rng = rng

    def full(self, problem: WordProblem, recipe: Recipe = SERVED) -> Row:
        """A whole trace and its answer."""
        trace = write_trace(self.rng, problem.steps, recipe)
        return self._whole(problem, trace)

    def clean(self, problem: WordProblem) -> Row:
        """A derivation without errors."""
        return self.full(problem, CLEAN)

    def dense(self, problem: WordProblem) -> Row:
        """A trace with many errors, its results not trained on."""
        return self.full(problem, DENSE)

    def cut(self, problem: WordProblem, recipe: Recipe = SERVED) -> Row:
        """A trace cut at a boundary, the hand-off spliced in, and the answer reached by then."""
        trace = write_trace(self.rng, problem.steps, recipe)
        if not trace.boundaries:
            return self._whole(problem, trace)
        boundary = self.rng.choice(trace.boundaries)
        ids, weights = self._thinking(problem, trace, upto=boundary.end)
        value = boundary.answer if boundary.answer is not None else problem.gold
        extract = self.rng.random() < 0.4
        self._add(ids, weights, HANDOFF_EXTRACT if extract else HANDOFF_WRITE, 0.0)
        answer = f"{value}{ANSWER_CLOSING}" if extract else written_answer(self.rng, value)
        self._add(ids, weights, answer + TURN_END, 2.0)
        return Row(ids, weights)

    def unthinking(self, problem: WordProblem) -> Row:
        """The answer at once, after an empty thinking block."""
        ids: list[int] = []
        weights: list[float] = []
        self._add(ids, weights, prompt(problem.text, thinking=False), 0.0)
        self._add(ids, weights, written_answer(self.rng, problem.gold) + TURN_END, 1.0)
        return Row(ids, weights)

    def sums(self, count: int = 12) -> Row:
        """Lines of plain arithmetic, to learn it densely."""
        lines: list[str] = []
        while len(lines) < count:
            op = self.rng.choices("+-*/", weights=(40, 40, 15, 5))[0]
            a, b = self.rng.randint(1, 99), self.rng.randint(2, 5) if op in "*/" else self.rng.randint(1, 60)
            value = result(op, a, b)
            if value is None or (op in "+-" and not is_hard(op, a, b) and self.rng.random() < 0.5):
                continue
            lines.append(f"{a} {op} {b} = {value}.")
        ids: list[int] = []
        weights: list[float] = []
        self._add(ids, weights, " Then ".join(lines), 1.0)
        return Row(ids, weights)

    def _whole(self, problem: WordProblem, trace: Trace) -> Row:
        ids, weights = self._thinking(problem, trace, upto=len(trace.text))
        answer = NATURAL_CLOSE + written_answer(self.rng, trace.final) + TURN_END
        self._add(ids, weights, answer, 1.0)
        return Row(ids, weights)

    def _thinking(self, problem: WordProblem, trace: Trace, *, upto: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        self._add(ids, weights, prompt(problem.text), 0.0)
        text_ids, starts = self.encoder.encode(trace.text)
        by_char = _char_weights(trace)
        keep = sum(1 for start in starts if start < upto)
        ids += text_ids[:keep]
        weights += [by_char[start] for start in starts[:keep]]
        return ids, weights

    def _add(self, ids: list[int], weights: list[float], text: str, weight: float) -> None:
        more, _ = self.encoder.encode(text)
        ids += more
        weights += [weight] * len(more)


def _char_weights(trace: Trace) -> list[float]:
    weights = [1.0] * len(trace.text)
    for span in trace.decisions:
        weights[span.start : span.end] = [DECISION_WEIGHT] * (span.end - span.start)
    for span in trace.softened:
        weights[span.start : span.end] = [SOFTENED_WEIGHT] * (span.end - span.start)
    for span in trace.muted:
        weights[span.start : span.end] = [0.0] * (span.end - span.start)
    return weights


def text_of_rows(problems: Sequence[WordProblem], rng: random.Random) -> list[str]:
    """Plain texts that show the tokenizer what it will read."""
    texts = []
    for problem in problems:
        trace = write_trace(rng, problem.steps, SERVED)
        texts.append(f"user\n{problem.text}\nassistant\n")
        texts.append(trace.text + NATURAL_CLOSE + written_answer(rng, problem.gold))
    texts += [HANDOFF_EXTRACT] * (len(problems) // 10 + 1)
    return texts


__all__ = [
    "PAD",
    "Boundary",
    "Encoder",
    "FastEncoder",
    "Row",
    "RowMaker",
    "prompt",
    "text_of_rows",
    "written_answer",
]
