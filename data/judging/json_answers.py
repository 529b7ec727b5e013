"""The judge `json`: two answers hold the same JSON, or the same named fields of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from desist.data.errors import DataError
from desist.data.judging.base import Case, Judge, same_value
from desist.data.judging.json_values import NOTHING, find_json, read_json, same_json
from desist.data.judging.verdict import DIFFERENT, EQUAL, Unjudgeable, Verdict, different, unjudgeable
from desist.data.thinking import without_thinking

__all__ = ["JsonJudge"]


class JsonJudge(Judge):
    """Compares the whole JSON, or only `fields`: dotted paths, array places as numbers ("items.0.name").

    Of two answers one may lack a field: they differ. Where both lack it, or hold no JSON, there is nothing
    to compare. A reference of one named field may be the bare value. Raises `DataError` for an empty field.
    """

    def __init__(self, fields: Sequence[str] = ()) -> None:
        self.fields = tuple(field.strip() for field in fields)
        if "" in self.fields:
            raise DataError("a field of judge 'json' is empty. Write json:FIELD[,FIELD...], or json for all.")

    @property
    def name(self) -> str:
        return f"json:{','.join(self.fields)}" if self.fields else "json"

    def read(self, text: str) -> str | None:
        return without_thinking(text).strip() or None

    def compare(self, a: str, b: str, case: Case) -> Verdict:
        if a == b:
            return EQUAL
        try:
            return self._compared(find_json(a), find_json(b))
        except Unjudgeable as fault:
            return unjudgeable(str(fault))
        except RecursionError:
            return unjudgeable("its JSON is nested too deeply")

    def grade(self, answer: str, case: Case) -> Verdict:
        if len(self.fields) != 1 or case.gold is None:
            return same_value(self, answer, case.gold, case)
        try:
            reference = read_json(case.gold)
            if isinstance(reference, (dict, list)):
                return same_value(self, answer, case.gold, case)
            value = _at(find_json(answer), self.fields[0])
        except (Unjudgeable, RecursionError) as fault:
            return unjudgeable(str(fault) if isinstance(fault, Unjudgeable) else "nested too deeply")
        if value is NOTHING:
            return different(f"no field '{self.fields[0]}'")
        plain = isinstance(value, str) and value.strip() == case.gold.strip()
        return EQUAL if plain or (reference is not NOTHING and same_json(value, reference)) else DIFFERENT

    def _compared(self, a: Any, b: Any) -> Verdict:
        if a is NOTHING and b is NOTHING:
            return unjudgeable("no answer holds JSON")
        if a is NOTHING or b is NOTHING:
            return different("only one of them holds JSON")
        if not self.fields:
            return EQUAL if same_json(a, b) else DIFFERENT
        missing = ""
        for field in self.fields:
            left, right = _at(a, field), _at(b, field)
            if left is NOTHING and right is NOTHING:
                missing = missing or field
            elif left is NOTHING or right is NOTHING or not same_json(left, right):
                return different(f"field '{field}'")
        return unjudgeable(f"no answer has the field '{missing}'") if missing else EQUAL


def _at(value: Any, path: str) -> Any:
    """The value at a path; a key that is written like the whole path goes before."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and part.isascii() and len(part) < 10:
            if int(part) >= len(value):
                return NOTHING
            value = value[int(part)]
        else:
            return NOTHING
    return value
