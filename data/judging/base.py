"""What a judge is, and the rules that hold for every judge.

A judge compares answers; which part of an answer's text it compares is its own affair (`read`). Rules for
all: the same text is the same answer, and no judge is asked; no answer equals no answer, and never one that
is given. Knows no judge by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from desist.data.answers import extract_answer
from desist.data.judging.verdict import EQUAL, Verdict, different

__all__ = ["Case", "Judge", "right_answer", "same_answer", "same_value"]


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of the problem beside its answers. `gold`: the reference, None where there is none."""

    problem: str = ""
    gold: str | None = None


class Judge(ABC):
    """Decides whether two answers are the same. `version` changes when a verdict may change.

    `name`: as it was declared ("json:city,date"). `label`: what traces and certificates say of it; two
    judges with the same label decide alike. `runs_commands`: it starts programs, so only an operator may
    name it. `needs_reference`: without a reference it cannot say which answer is right.
    """

    version: ClassVar[str] = "1"
    runs_commands: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def label(self) -> str:
        return self.name

    def read(self, text: str) -> str | None:
        """What of an answer's text is compared; None where it gives no answer. Here: the extracted value."""
        return extract_answer(text) if text else None

    @abstractmethod
    def compare(self, a: str, b: str, case: Case) -> Verdict:
        """The verdict on two answers as `read` gives them, which are different texts. Never raises."""

    def grade(self, answer: str, case: Case) -> Verdict:
        """Whether an answer as `read` gives it is right ("equal"): here, whether it equals the reference."""
        return same_value(self, answer, case.gold, case)


_NO_ANSWER = different("only one of them gives an answer")


def same_value(judge: Judge, a: str | None, b: str | None, case: Case) -> Verdict:
    """The verdict on two answers as the judge's `read` gives them."""
    if a == b:
        return EQUAL
    return _NO_ANSWER if a is None or b is None else judge.compare(a, b, case)


def same_answer(judge: Judge, a: str, b: str, case: Case) -> Verdict:
    """The verdict on two answers as texts: a stopped run's and the full run's, say."""
    return EQUAL if a == b else same_value(judge, judge.read(a), judge.read(b), case)


def right_answer(judge: Judge, text: str, case: Case) -> Verdict | None:
    """Whether an answer's text is right; None where that is not known: a reference is needed and missing."""
    if judge.needs_reference and case.gold is None:
        return None
    answer = judge.read(text)
    return _NO_ANSWER if answer is None else judge.grade(answer, case)
