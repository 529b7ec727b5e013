r"""The judge `math`: when two mathematical answers are the same.

What it decides where practice differs:

* a true answer always equals itself, also where no parser can read it, and equality is symmetric;
* tuples and intervals keep their order and their brackets; sets and lists ("2, 3", "2 or 3") do not;
* a unit that one side leaves out is no difference ("5" is "5 cm"); two different units are ("5 cm" is
  not "5 m", and not "50 mm": units are never converted). The same holds for a number base (1204_9);
* 50 % equals 50 (unit left out) and 1/2 (its value);
* a leading "x =" may be left out on one side; "x = 5" is not "y = 5";
* numbers are compared exactly; only a decimal of three places or more may be a fraction or a root,
  rounded to these places (0.333 is 1/3);
* words are compared as text, without case; nothing is ever compared by substring.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from desist.data.algebra import AlgebraTimeout, AlgebraWorker
from desist.data.braces import balanced
from desist.data.canonical import canonical, compact
from desist.data.forms import Form, readings
from desist.data.judging.base import Case, Judge
from desist.data.judging.verdict import DIFFERENT, EQUAL, Verdict, unjudgeable
from desist.data.numeric import certainly_different
from desist.data.quantities import Quantity, read_quantity, same_value

__all__ = ["MathJudge"]

logger = logging.getLogger(__name__)

_LONGEST = 2000
_LONGEST_ALGEBRA = 600
_CACHE_SIZE = 65_536
_SMALL_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z'.\s-]*[A-Za-z.]")
_CONSTANTS = frozenset("ei")


class MathJudge(Judge):
    """The judge for mathematical answers (rules: see the module).

    Cheap paths decide most pairs; algebra goes to math-verify in a process that is killed after
    `limit_s` seconds. A pair that takes longer is unjudgeable, is logged and counted in `timeouts`.
    """

    name = "math"

    def __init__(self, limit_s: float = 3.0) -> None:
        self.timeouts = 0
        self._worker = AlgebraWorker(limit_s)
        self._here = threading.local()  # comparisons given up by this thread
        self._decide: Callable[[str, str], Verdict] = lru_cache(maxsize=_CACHE_SIZE)(self._verdict)

    def compare(self, a: str, b: str, case: Case) -> Verdict:
        if a == b:
            return EQUAL
        if _SMALL_INTEGER.fullmatch(a) and _SMALL_INTEGER.fullmatch(b):
            return DIFFERENT  # canonical integers: different texts are different numbers
        return self._decide(a, b) if a <= b else self._decide(b, a)

    def _verdict(self, a: str, b: str) -> Verdict:
        self._here.timeouts = 0
        if self._decided(a, b):
            return EQUAL
        return unjudgeable("the algebra took too long") if self._here.timeouts else DIFFERENT

    def _decided(self, a: str, b: str) -> bool:
        if max(len(a), len(b)) > _LONGEST:
            return a.split() == b.split()
        left, right = canonical(a), canonical(b)
        if compact(left) == compact(right):
            return True
        if not left or not right or not balanced(left) or not balanced(right):
            return False
        return any(self._same(one, other) for one in readings(left) for other in readings(right))

    def _same(self, a: Form, b: Form) -> bool:
        if a.name and b.name and a.name != b.name:
            return False
        if a.kind == b.kind == "leaf":
            return self._same_leaf(a.text, b.text)
        if a.kind != b.kind or a.tag != b.tag:
            return compact(a.text) == compact(b.text)
        if a.kind == "unordered":
            return self._same_members(a, b)
        return len(a.parts) == len(b.parts) and all(map(self._same, a.parts, b.parts))

    def _same_members(self, a: Form, b: Form) -> bool:
        """Each member of one has an equal in the other: order and repetition do not count."""
        if max(len(a.parts), len(b.parts)) > 2 * min(len(a.parts), len(b.parts)):
            return False
        return all(any(self._same(x, y) for y in b.parts) for x in a.parts) and all(
            any(self._same(x, y) for x in a.parts) for y in b.parts
        )

    def _same_leaf(self, a: str, b: str) -> bool:
        if compact(a) == compact(b):
            return True
        left, right = read_quantity(a), read_quantity(b)
        if left.unit == "%" or right.unit == "%":
            return _same_percent(left, right)
        if left.unit and right.unit and left.unit != right.unit:
            return False
        if (verdict := same_value(left, right)) is not None:
            return verdict
        if _is_word(a) or _is_word(b):
            return " ".join(a.casefold().split()) == " ".join(b.casefold().split())
        return self._same_algebra(left.text, right.text)

    def _same_algebra(self, a: str, b: str) -> bool:
        if compact(a) == compact(b):
            return True
        if _variables(a) != _variables(b) or ("=" in a) != ("=" in b):
            return False
        if any(text.count("(") != text.count(")") for text in (a, b)):
            return False
        if max(len(a), len(b)) > _LONGEST_ALGEBRA or certainly_different(a, b):
            return False
        try:
            return self._worker.equal(a, b)
        except AlgebraTimeout:
            self.timeouts += 1
            self._here.timeouts += 1
            logger.warning("a comparison of two answers took over %g s: not decided", self._worker.limit_s)
            return False


def _same_percent(a: Quantity, b: Quantity) -> bool:
    if a.unit not in ("", "%") or b.unit not in ("", "%"):
        return False
    if same_value(a, b):
        return True
    if a.unit == b.unit or a.value is None or b.value is None:
        return a.unit == b.unit and compact(a.text) == compact(b.text)
    scale = [Fraction(1, 100) if quantity.unit else Fraction(1) for quantity in (a, b)]
    return a.value * scale[0] == b.value * scale[1]


def _is_word(text: str) -> bool:
    """Text that is not algebra. Without this "stop" and "spot" would be equal products of letters."""
    return len(re.sub(r"[^A-Za-z]", "", text)) >= 3 and _WORD.fullmatch(text) is not None


def _variables(text: str) -> frozenset[str]:
    """The letters an expression depends on; equal expressions have the same ones, `e` and `i` aside."""
    return frozenset(re.findall(r"[A-Za-z]", _COMMANDS.sub(" ", text))) - _CONSTANTS
