"""The trace grammar: true where it should be, and silent about errors before a boundary."""

from __future__ import annotations

import random
import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from desist.data.reasoner.derivation import Trace, write_trace
from desist.data.reasoner.measure import answers_reached, headroom
from desist.data.reasoner.problems import draw_problem
from desist.data.reasoner.recipe import CLEAN, DENSE, SERVED, Recipe

_CUE = re.compile(r"(wait|hmmm|hmm|alternatively|let me double-check)$", re.IGNORECASE)


def _trace(seed: int, recipe: Recipe) -> tuple[Trace, str]:
    rng = random.Random(seed)
    problem = draw_problem(rng)
    return write_trace(rng, problem.steps, recipe), problem.gold


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_clean_derivation_ends_in_gold(seed: int) -> None:
    trace, gold = _trace(seed, CLEAN)
    assert str(trace.final) == gold
    assert not any(boundary.kind == "cue" for boundary in trace.boundaries)


@given(st.integers(0, 2**32), st.sampled_from([SERVED, DENSE]))
@settings(max_examples=200, deadline=None)
def test_landmarks_fit_the_text(seed: int, recipe: Recipe) -> None:
    trace, _ = _trace(seed, recipe)
    assert all(0 <= int(number) <= 99 for number in re.findall(r"\d+", trace.text))
    found = answers_reached(trace.text)
    assert [(reached.end, int(reached.value)) for reached in found] == trace.answers
    for boundary in trace.boundaries:
        before = trace.text[: boundary.end]
        assert before.endswith("\n\n") if boundary.kind == "paragraph" else _CUE.search(before)
        known = answers_reached(before)
        assert boundary.answer == (int(known[-1].value) if known else None)
    assert 0.0 <= headroom(trace.text) < 1.0
    assert len(trace.answers) <= recipe.most_answers


def test_cue_word_and_break_say_nothing_of_errors() -> None:
    words: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for seed in range(4000):
        trace, _ = _trace(seed, DENSE)
        for boundary in trace.boundaries:
            ending = trace.text[: boundary.end]
            match = _CUE.search(ending)
            word = match[0] if match else "\n\n"
            if boundary.answer is not None:
                words[boundary.step_is_wrong][word] += 1
    totals = {wrong: sum(counts.values()) for wrong, counts in words.items()}
    for word in words[True]:
        share, other = words[True][word] / totals[True], words[False][word] / totals[False]
        deviation = (share * (1 - share) * (1 / totals[True] + 1 / totals[False])) ** 0.5
        assert abs(share - other) < 5 * deviation + 1e-9, word


def test_the_recipe_meets_its_targets_in_simulation() -> None:
    first = full = room = 0.0
    count = 1500
    for seed in range(count):
        trace, gold = _trace(seed, SERVED)
        first += str(trace.answers[0][1]) == gold
        full += str(trace.final) == gold
        room += headroom(trace.text)
    assert 0.60 <= first / count <= 0.85
    assert full / count >= 0.95
    assert room / count >= 0.5
