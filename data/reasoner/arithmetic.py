"""Small arithmetic and its one systematic mistake.

Knows what an operation gives, when it is hard (a carry or a borrow), and which wrong value a careless
reader writes instead. Knows nothing of stories, traces or models.
"""

from __future__ import annotations

from dataclasses import dataclass

HIGHEST = 99


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an earlier step, by its index."""

    index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a problem; an operand is a number or an earlier result."""

    op: str
    left: int | Ref
    right: int | Ref

    def operands(self, results: list[int]) -> tuple[int, int]:
        """The two numbers this step works on, given the results so far."""
        left = results[self.left.index] if isinstance(self.left, Ref) else self.left
        right = results[self.right.index] if isinstance(self.right, Ref) else self.right
        return left, right


def result(op: str, left: int, right: int) -> int | None:
    """The true result, or None where it is not a whole number between 0 and 99."""
    if op == "+":
        value = left + right
    elif op == "-":
        value = left - right
    elif op == "*":
        value = left * right
    elif right and left % right == 0:
        value = left // right
    else:
        return None
    return value if 0 <= value <= HIGHEST else None


def is_hard(op: str, left: int, right: int) -> bool:
    """Whether the operation carries or borrows (where mistakes are made)."""
    if op == "+":
        return left % 10 + right % 10 >= 10
    if op == "-":
        return left % 10 < right % 10
    if op == "*":
        return left >= 10 and right < 10 and (left % 10) * right >= 10
    return False


def slip(op: str, left: int, right: int) -> int | None:
    """The wrong value a slip gives: always the same one (a carry or a borrow forgotten)."""
    value = result(op, left, right)
    if value is None:
        return None
    if is_hard(op, left, right):
        forgotten = 10 * ((left % 10) * right // 10) if op == "*" else 10
        wrong = value + forgotten if op == "-" else value - forgotten
    else:
        wrong = value - 10 if value >= 10 else value + 10
    return wrong if 0 <= wrong <= HIGHEST else None


def evaluate(steps: tuple[Step, ...], results: list[int] | None = None) -> list[int] | None:
    """All results, going on from `results`; None where some step leaves 0..99."""
    done = list(results or [])
    for step in steps[len(done) :]:
        value = result(step.op, *step.operands(done))
        if value is None:
            return None
        done.append(value)
    return done
