"""When two answers are the same: named judges, whose names stand in traces and certificates.

Each judge has a module; what holds for all of them is in `base`, their names are in `registry`.
"""

from __future__ import annotations

from desist.data.judging.base import Case, Judge, right_answer, same_answer
from desist.data.judging.registry import answers_equal, get_judge, operator_judge, register_judge
from desist.data.judging.verdict import Verdict

__all__ = [
    "Case",
    "Judge",
    "Verdict",
    "answers_equal",
    "get_judge",
    "operator_judge",
    "register_judge",
    "right_answer",
    "same_answer",
]
