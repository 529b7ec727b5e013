"""The problem generator: values stay small, gold is right, splits do not overlap."""

from __future__ import annotations

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from desist.data.reasoner.arithmetic import evaluate, is_hard, result, slip
from desist.data.reasoner.problems import draw_problem, draw_problems
from desist.data.splits import problem_id, split_of


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_problem_holds_its_gold_and_its_numbers(seed: int) -> None:
    problem = draw_problem(random.Random(seed))
    values = evaluate(problem.steps)
    assert values is not None
    assert str(values[-1]) == problem.gold
    assert all(0 <= value <= 99 for value in values)
    assert 2 <= len(problem.steps) <= 4
    assert "{" not in problem.text
    assert "  " not in problem.text
    assert all(int(number) <= 99 for number in re.findall(r"\d+", problem.text))


@given(st.sampled_from("+-*/"), st.integers(0, 99), st.integers(0, 99))
def test_a_slip_is_a_small_wrong_value(op: str, left: int, right: int) -> None:
    true, wrong = result(op, left, right), slip(op, left, right)
    if true is None:
        assert wrong is None
    elif wrong is not None:
        assert wrong != true
        assert 0 <= wrong <= 99
        assert (wrong - true) % 10 == 0
        assert is_hard(op, left, right) or abs(wrong - true) == 10


def test_the_same_seed_draws_the_same_distinct_problems() -> None:
    first, second = draw_problems(3, 200), draw_problems(3, 200)
    assert first == second
    assert len({problem_id(problem.text) for problem in first}) == 200
    assert len({problem.template for problem in first}) >= 10


def test_keep_draws_one_split_only() -> None:
    test = draw_problems(3, 60, keep=lambda identity: split_of(identity) == "test")
    own = draw_problems(3, 200, keep=lambda identity: split_of(identity) == "reasoner")
    assert all(split_of(problem_id(problem.text)) == "test" for problem in test)
    assert not {p.text for p in test} & {p.text for p in own}
