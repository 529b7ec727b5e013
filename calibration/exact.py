"""Exact numbers: risk levels as fractions, binomial tails that do not slip at a rounding error.

Knows numbers only. A level typed as 0.05 means 1/20, never the binary float next to it; comparisons of a
tail with delta are decided in integers where floats are too close to call.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from scipy.special import bdtr

from desist.data.errors import CalibrationError

__all__ = ["Level", "at_most", "binomial_tail", "exact", "exact_text", "level"]

# Relative distance within which scipy's tail is not trusted to be on the right side of delta.
_TOO_CLOSE = 1e-7


def exact(value: object) -> Fraction:
    """`value` as the fraction its decimal text stands for: 0.05, "0.05", "1/20" and Fraction(1, 20) agree."""
    if isinstance(value, Fraction):
        return value
    try:
        return Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError) as failure:
        raise CalibrationError(f"{value!r} is no number. Give a level such as 0.05 or 1/20.") from failure


def level(value: object, name: str = "level") -> Fraction:
    """`exact(value)`, refused unless it lies strictly between 0 and 1."""
    found = exact(value)
    if not 0 < found < 1:
        raise CalibrationError(
            f"{name} is {exact_text(found)}; it must lie strictly between 0 and 1, for example 0.05."
        )
    return found


def exact_text(value: Fraction) -> str:
    """Decimal text where the decimal ends ("0.05"), else "p/q". Read back by `exact` without loss."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1 or value.denominator > 10**20:
        return str(value)
    return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


def _validated(value: Any) -> Fraction:
    return level(value)


Level = Annotated[
    Fraction,
    BeforeValidator(_validated),
    PlainSerializer(exact_text, return_type=str),
]
"""A pydantic field holding an exact level in (0, 1); JSON shows it as decimal text."""


def binomial_tail(m: int, n: int, alpha: Fraction) -> float:
    """P(Bin(n, alpha) <= m) as a float. Zero for m < 0."""
    return float(bdtr(min(m, n), n, float(alpha))) if m >= 0 else 0.0


def at_most(m: int, n: int, alpha: Fraction, delta: Fraction) -> bool:
    """Whether P(Bin(n, alpha) <= m) <= delta, decided exactly."""
    if m < 0:
        return True
    if m >= n:
        return delta >= 1
    near = binomial_tail(m, n, alpha)
    if abs(near - float(delta)) > _TOO_CLOSE * float(delta):
        return near <= float(delta)
    tail: int = _tail_in_integers(m, n, alpha) * delta.denominator
    return bool(tail <= delta.numerator * alpha.denominator**n)


def _tail_in_integers(m: int, n: int, alpha: Fraction) -> int:
    """P(Bin(n, p/q) <= m) times q**n, as an integer."""
    p, q = alpha.numerator, alpha.denominator
    return sum(math.comb(n, k) * p**k * (q - p) ** (n - k) for k in range(m + 1))
