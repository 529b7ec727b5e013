r"""A value for an expression at one fixed point, to tell apart quickly what is certainly not equal.

Knows a small part of LaTeX (numbers, letters, + - * / ^, \frac, \sqrt, \pi, a few functions) and puts a
fixed number in the place of each letter. Two expressions with different values differ; equal values prove
nothing, and what this cannot read has no value. The verdict "equal" is always left to algebra.
"""

from __future__ import annotations

import cmath
import math
import re
from functools import lru_cache

__all__ = ["certainly_different", "value_at_point"]

_TOKEN = re.compile(r"\s*(\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+|[A-Za-z]|[-+*/^(){}\[\]|!])")
_PRODUCT = frozenset({"*", r"\times", r"\cdot"})
_QUOTIENT = frozenset({"/", r"\div"})
_ENDS = frozenset({"+", "-", ")", "}", "]", "|", "^", "!"}) | _PRODUCT | _QUOTIENT
_FUNCTIONS = {
    r"\sin": cmath.sin, r"\cos": cmath.cos, r"\tan": cmath.tan, r"\ln": cmath.log, r"\exp": cmath.exp,
    r"\arcsin": cmath.asin, r"\arccos": cmath.acos, r"\arctan": cmath.atan,
}  # fmt: skip
_DEEPEST = 40
_LARGEST_EXPONENT = 1e5
_RELATIVE = 1e-6


class _Unread(Exception):
    """The expression holds something this reader does not know."""


class _Tower(Exception):
    """A power so large that no algebra comes back from it."""


class _Expression:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        offset = 0
        text = text.strip()
        while offset < len(text):
            match = _TOKEN.match(text, offset)
            if match is None:
                raise _Unread(text[offset])
            self.tokens.append(match.group(1))
            offset = match.end()
        self.at, self.depth = 0, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise _Unread(token)
        self.at += 1
        return token

    def sum(self) -> complex:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _Unread("too deep")
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        self.depth -= 1
        return value

    def product(self) -> complex:
        value = self.signed()
        while (token := self.peek()) and token not in (")", "}", "]", "|", "+", "-"):
            if token in _PRODUCT:
                self.take()
                value *= self.signed()
            elif token in _QUOTIENT:
                self.take()
                value /= self.signed()
            elif token in _ENDS:
                raise _Unread(token)
            else:
                value *= self.power()
        return value

    def signed(self) -> complex:
        if self.peek() in ("+", "-"):
            return self.signed() if self.take() == "+" else -self.signed()
        return self.power()

    def power(self) -> complex:
        base = self.atom()
        if self.peek() == "!":
            raise _Unread("!")
        if self.peek() != "^":
            return base
        self.take()
        exponent = self.group() if self.peek() == "{" else self.single()
        if abs(exponent) > _LARGEST_EXPONENT and abs(base) > 1:
            raise _Tower
        return complex(base**exponent)

    def single(self) -> complex:
        """An exponent without braces is one digit or one letter."""
        token = self.take()
        if token.isdigit() and len(token) > 1:
            raise _Unread(token)
        self.at -= 1
        return self.atom()

    def group(self) -> complex:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def atom(self) -> complex:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return complex(float(token))
        if token in ("(", "{", "["):
            value = self.sum()
            self.take({"(": ")", "{": "}", "[": "]"}[token])
            return value
        if token == "|":
            value = self.sum()
            self.take("|")
            return complex(abs(value))
        if token == r"\pi":
            return complex(math.pi)
        if token == r"\frac":
            return self.group() / self.group()
        if token == r"\sqrt":
            return self.root()
        if token in _FUNCTIONS and self.peek() in ("(", "{"):
            return complex(_FUNCTIONS[token](self.atom()))
        if len(token) == 1 and token.isalpha():
            return {"e": complex(math.e), "i": 1j}.get(token, complex(0.37 + 0.0193 * ord(token)))
        raise _Unread(token)

    def root(self) -> complex:
        degree = complex(2)
        if self.peek() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        return complex(self.group() ** (1 / degree))


@lru_cache(maxsize=65_536)
def value_at_point(text: str) -> complex | None:
    """The value with a fixed number for each letter, or None where it cannot be read or is not finite.

    A tower of powers has the value infinity.
    """
    try:
        expression = _Expression(text)
        value = expression.sum()
        if expression.at != len(expression.tokens):
            return None
    except _Tower:
        return complex(math.inf)
    except (_Unread, ArithmeticError, ValueError):
        return None
    return value if cmath.isfinite(value) else None


def certainly_different(a: str, b: str) -> bool:
    """Whether both have a value and the values lie clearly apart.

    A tower of powers that is not written alike is always different: it could not be compared. A decimal
    is given the distance of half its last place, as in `quantities.same_value`.
    """
    left, right = value_at_point(a), value_at_point(b)
    infinite = any(value is not None and cmath.isinf(value) for value in (left, right))
    if left is None or right is None or infinite:
        return infinite
    places = [len(text.partition(".")[2]) for text in (a, b) if re.fullmatch(r"[-+]?\d*\.\d+", text.strip())]
    allowed = max([_RELATIVE * max(1e-6, abs(left), abs(right)), *(0.51 * 10.0**-count for count in places)])
    return abs(left - right) > allowed
