"""The judge `tool`: two answers call the same tools with the same arguments."""

from __future__ import annotations

from desist.data.judging.base import Case, Judge
from desist.data.judging.tool_texts import calls_of
from desist.data.judging.tool_values import same_calls
from desist.data.judging.verdict import DIFFERENT, EQUAL, Unjudgeable, Verdict, different, unjudgeable
from desist.data.thinking import without_thinking

__all__ = ["ToolJudge"]


class ToolJudge(Judge):
    """Names and arguments count; ids, the words around a call, and the order of calls made at once do not.

    Where only one answer calls a tool they differ; where none does there is nothing to compare.
    """

    name = "tool"

    def read(self, text: str) -> str | None:
        return without_thinking(text).strip() or None

    def compare(self, a: str, b: str, case: Case) -> Verdict:
        if a == b:
            return EQUAL
        try:
            mine, other = calls_of(a), calls_of(b)
            if not mine and not other:
                return unjudgeable("no answer calls a tool")
            if not mine or not other:
                return different("only one of them calls a tool")
            return EQUAL if same_calls(mine, other) else DIFFERENT
        except Unjudgeable as fault:
            return unjudgeable(str(fault))
        except RecursionError:
            return unjudgeable("the arguments of a tool call are nested too deeply")
