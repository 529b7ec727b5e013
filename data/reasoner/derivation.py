"""The trace grammar: how the reasoner thinks about a chain of operations.

Writes one trace as text and remembers where its boundaries, its reached answers and its decisions lie
(in characters). The cue word and the paragraph break are drawn before and apart from what is wrong; only
the token after a cue says whether a step is suspected. Knows nothing of tokens or models.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from desist.data.reasoner.arithmetic import Step, is_hard, result, slip
from desist.data.reasoner.recipe import Recipe

_CAPITAL_CUES = ("Wait", "Hmm", "Alternatively", "Let me double-check", "Hmmm")
_CUE_WEIGHTS = (0.42, 0.24, 0.14, 0.12, 0.08)
_CONNECTORS = (("First, ", " Then "), ("", " Then "), ("", " Next, "), ("We have ", " Then "))
_ANSWERS = ("So the answer is {v}", "The answer is {v}", "That makes {v}")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place where thinking could be cut: the text up to `end`, what it ends with, the answer by then."""

    end: int
    kind: str
    answer: int | None
    reached: int
    step_is_wrong: bool


@dataclass(slots=True)
class Trace:
    """One reasoning text with its landmarks."""

    text: str = ""
    boundaries: list[Boundary] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    decisions: list[Span] = field(default_factory=list)
    muted: list[Span] = field(default_factory=list)
    softened: list[Span] = field(default_factory=list)

    @property
    def final(self) -> int:
        """The answer the trace ends with."""
        return self.answers[-1][1]


class TraceWriter:
    """Writes one trace. `values` is what is believed now, step by step."""

    def __init__(self, rng: random.Random, steps: tuple[Step, ...], recipe: Recipe) -> None:
        self.rng = rng
        self.steps = steps
        self.recipe = recipe
        self.trace = Trace()
        self.values: list[int] = []
        self.said: dict[tuple[str, int, int], int] = {}
        self.counts: dict[int, int] = {}
        self.connectors = rng.choice(_CONNECTORS)

    def write(self) -> Trace:
        """Think until one answer has been reached often enough."""
        enough = 2 + self.rng.choices(range(len(self.recipe.reach_weights)), self.recipe.reach_weights)[0]
        self._derive(0, opening=self.connectors[0])
        while True:
            self._answer()
            if len(self.trace.answers) >= self.recipe.most_answers:
                break
            if self.counts[self.values[-1]] >= enough:
                break
            self._recheck(mid=False)
        self.trace.text += "."
        return self.trace

    def _emit(self, text: str) -> Span:
        start = len(self.trace.text)
        self.trace.text += text
        return Span(start, len(self.trace.text))

    def _boundary(self, kind: str) -> None:
        answers = self.trace.answers
        wrong = self._wrong_step() is not None
        latest = answers[-1][1] if answers else None
        reached = self.counts[latest] if latest is not None else 0
        self.trace.boundaries.append(Boundary(len(self.trace.text), kind, latest, reached, wrong))

    def _wrong_step(self) -> int | None:
        for index, value in enumerate(self.values):
            step = self.steps[index]
            if value != result(step.op, *step.operands(self.values)):
                return index
        return None

    def _compute(self, index: int) -> int:
        """What is written as the result of a step: the truth, a slip, or the slip made before."""
        step, recipe = self.steps[index], self.recipe
        left, right = step.operands(self.values)
        true = result(step.op, left, right)
        if true is None:  # slips are only made where the chain goes on
            raise AssertionError("a step leaves 0..99")
        key = (step.op, left, right)
        hard = is_hard(*key)
        if key in self.said and self.said[key] != true:
            rate = recipe.repeat_error
        elif not self.trace.answers and key not in self.said:
            rate = recipe.first_error_hard if hard else recipe.first_error_easy
        elif hard:
            rate = recipe.recheck_error_product if step.op == "*" else recipe.recheck_error_hard
        else:
            rate = recipe.recheck_error_easy
        wrong = slip(*key)
        if self.rng.random() < rate and wrong is not None and self._goes_on(index, wrong):
            self.said[key] = wrong
        else:
            self.said[key] = true
        return self.said[key]

    def _goes_on(self, index: int, value: int) -> bool:
        values = [*self.values[:index], value]
        for step in self.steps[index + 1 :]:
            following = result(step.op, *step.operands(values))
            if following is None:
                return False
            values.append(following)
        return True

    def _derive(self, start: int, *, opening: str) -> None:
        """Write steps from `start` on; stop early where a re-check changed nothing."""
        index, first_pass = start, not self.trace.answers
        lead = opening
        while index < len(self.steps):
            before = self.values[index] if index < len(self.values) else None
            if self._say(index, lead) != before:
                del self.values[index + 1 :]
            last = index == len(self.steps) - 1
            complete = len(self.values) == len(self.steps)
            if last:
                return
            rate = self.recipe.cue_in_first_derivation if first_pass else self.recipe.cue_in_recheck
            if self.rng.random() < rate:
                index = self._recheck_point(mid=True)
                lead = " "
                continue
            if complete and index >= start and self.rng.random() < self.recipe.jump_to_answer:
                return
            index += 1
            lead = self._continue()

    def _say(self, index: int, lead: str) -> int:
        step = self.steps[index]
        left, right_operand = step.operands(self.values)
        value = self._compute(index)
        self._emit(f"{lead}{left} {step.op} {right_operand} = ")
        span = self._emit(str(value))
        if self.recipe.mute_results:
            right = value == result(step.op, left, right_operand)
            (self.trace.softened if right else self.trace.muted).append(span)
        if index < len(self.values):
            self.values[index] = value
        else:
            self.values.append(value)
        return value

    def _continue(self) -> str:
        """The words between two steps of one derivation, with now and then a paragraph break."""
        self._emit(".")
        if self.rng.random() < self.recipe.paragraph_in_derivation:
            self._emit("\n\n")
            self._boundary("paragraph")
            return self.connectors[1].lstrip()
        return self.connectors[1]

    def _answer(self) -> None:
        phrase = self.rng.choices(_ANSWERS, (0.6, 0.25, 0.15))[0]
        value = self.values[-1]
        self._emit(". " + phrase.format(v=value))
        self.counts[value] = self.counts.get(value, 0) + 1
        self.trace.answers.append((len(self.trace.text), value))

    def _recheck(self, *, mid: bool) -> None:
        start = self._recheck_point(mid=mid)
        self._derive(start, opening=" ")

    def _recheck_point(self, *, mid: bool) -> int:
        """Write a cue (or a bare paragraph break), then the decision; return the step gone back to."""
        bare = self._cue(mid=mid)
        wrong = self._wrong_step()
        suspects = self.rng.random() < (
            self.recipe.suspect_if_right if wrong is None else self.recipe.suspect_if_wrong
        )
        if suspects:
            index = wrong if wrong is not None else self.rng.randrange(len(self.values))
            mark = "Actually" if bare else self.rng.choice((".", ".", "..."))
        else:
            index = 0 if self.rng.random() < self.recipe.redo_all else self.rng.randrange(len(self.values))
            mark = "Again" if bare else ","
        span = self._emit(mark)
        step = self.steps[index]
        left, right = step.operands(self.values)
        upcoming = len(f" {left} {step.op} {right}")
        self.trace.decisions.append(Span(span.start, span.end + upcoming))
        return index

    def _cue(self, *, mid: bool) -> bool:
        """Write the break and the cue word; True where a paragraph begins without a cue."""
        form = self.rng.random()
        if not mid and form < self.recipe.paragraph_without_cue:
            self._emit(".\n\n")
            self._boundary("paragraph")
            return True
        word = self.rng.choices(_CAPITAL_CUES, _CUE_WEIGHTS)[0]
        if form < 0.35:
            self._emit(".\n\n")
            self._boundary("paragraph")
            self._emit(word)
        elif form < 0.8:
            self._emit(". " + word)
        else:
            self._emit(", " + word[0].lower() + word[1:])
        self._boundary("cue")
        return False


def write_trace(rng: random.Random, steps: tuple[Step, ...], recipe: Recipe) -> Trace:
    """One trace over a chain of operations."""
    return TraceWriter(rng, steps, recipe).write()
