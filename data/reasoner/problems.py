"""Word problems over small arithmetic, drawn from a seed.

Knows how to tell a chain of operations as a story and how to draw many distinct ones. Knows nothing of
traces, models or which split a caller wants (that is the caller's `keep`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from desist.data.reasoner.arithmetic import Ref, Step, evaluate, is_hard, slip
from desist.data.reasoner.stories import NAMES, THEMES, TIMES, Theme
from desist.data.splits import problem_id

_LENGTHS = (2, 2, 2, 2, 2, 3, 3, 3, 3, 4)


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A problem as it is put to the model, its gold answer and the operations behind it."""

    text: str
    gold: str
    steps: tuple[Step, ...]
    template: str


def draw_steps(rng: random.Random) -> tuple[Step, ...]:
    """A chain of 2 to 4 operations in which any one slip still leaves every value in 0..99."""
    while True:
        steps = _chain(rng, rng.choice(_LENGTHS))
        clean = evaluate(steps)
        if clean is None or clean[-1] == 0 or not any(_hard_at(steps, clean, i) for i in range(len(steps))):
            continue
        if all(_slip_holds(steps, clean, i) for i in range(len(steps)) if _hard_at(steps, clean, i)):
            return steps


def _chain(rng: random.Random, length: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    if rng.random() < 0.3:
        steps.append(Step("*", rng.randint(3, 29), rng.randint(2, 5)))
    else:
        steps.append(Step(rng.choice("+-"), rng.randint(5, 89), rng.randint(3, 49)))
    while len(steps) < length:
        op = rng.choices("+-*/", weights=(42, 42, 8, 8))[0]
        amount = rng.randint(3, 49) if op in "+-" else rng.choice((2, 3, 4, 5))
        steps.append(Step(op, Ref(len(steps) - 1), amount))
    return tuple(steps)


def _hard_at(steps: tuple[Step, ...], values: list[int], index: int) -> bool:
    return is_hard(steps[index].op, *steps[index].operands(values))


def _slip_holds(steps: tuple[Step, ...], values: list[int], index: int) -> bool:
    wrong = slip(steps[index].op, *steps[index].operands(values))
    return wrong is not None and evaluate(steps, [*values[:index], wrong]) is not None


def tell(rng: random.Random, steps: tuple[Step, ...], theme: Theme) -> str:
    """The chain as a story."""
    who, friend = rng.sample(NAMES, 2)
    things = rng.choice(theme.things)
    first = steps[0]
    if first.op == "*":
        sentences = [rng.choice(theme.groups).format(w=who, f=friend, o=things, n=first.left, m=first.right)]
        events = steps[1:]
    else:
        sentences = [rng.choice(theme.opening).format(w=who, f=friend, o=things, n=first.left)]
        events = steps
    for step in events:
        phrases = {"+": theme.add, "-": theme.sub, "*": theme.mul, "/": theme.div}[step.op]
        times = TIMES.get(step.right, "") if isinstance(step.right, int) else ""
        sentences.append(rng.choice(phrases).format(w=who, f=friend, o=things, n=step.right, t=times))
    sentences.append(rng.choice(theme.question).format(w=who, o=things))
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def draw_problem(rng: random.Random) -> WordProblem:
    """One problem."""
    steps = draw_steps(rng)
    values = evaluate(steps)
    if values is None:  # draw_steps admits only chains that can be evaluated
        raise AssertionError("a drawn chain leaves 0..99")
    theme = rng.choice(THEMES)
    return WordProblem(tell(rng, steps, theme), str(values[-1]), steps, theme.name)


def draw_problems(seed: int, n: int, *, keep: Callable[[str], bool] | None = None) -> list[WordProblem]:
    """`n` problems with distinct texts; `keep` sees the problem id, so that a caller draws only one split."""
    rng = random.Random(seed)
    seen: set[str] = set()
    drawn: list[WordProblem] = []
    while len(drawn) < n:
        problem = draw_problem(rng)
        identity = problem_id(problem.text)
        if identity in seen or (keep is not None and not keep(identity)):
            continue
        seen.add(identity)
        drawn.append(problem)
    return drawn
