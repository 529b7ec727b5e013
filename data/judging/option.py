"""The judge `option`: multiple choice."""

from __future__ import annotations

import re

from desist.data.canonical import canonical, compact
from desist.data.judging.base import Case, Judge
from desist.data.judging.verdict import DIFFERENT, EQUAL, Verdict

__all__ = ["OptionJudge"]


class OptionJudge(Judge):
    """The judge for multiple choice: "(C)", "C.", "c" and "C. 45 m" are all option C.

    Answers without an option letter are compared as text, without case.
    """

    name = "option"
    _LETTER = re.compile(
        r"\W*(?:(?:option|choice|answer)\b\W*)?([A-Za-z])(?:\W*|\s*[).:\]]\s.*)", re.I | re.DOTALL
    )

    def compare(self, a: str, b: str, case: Case) -> Verdict:
        return EQUAL if self._key(a) == self._key(b) else DIFFERENT

    def _key(self, answer: str) -> tuple[str, str]:
        text = canonical(answer)
        match = self._LETTER.fullmatch(text)
        return ("option", match.group(1).upper()) if match else ("text", compact(text).casefold())
