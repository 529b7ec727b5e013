"""Reading typed fields out of a mapping, with complaints that say where, what and what to do.

Knows types and bounds; does not know which fields a record has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from desist.data.errors import RecordError

__all__ = ["FOREIGN", "FieldReader", "shown"]

FOREIGN = "x_"
_MISSING: Any = object()
_LONGEST_SHOWN = 60


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


class FieldReader:
    """Reads the fields of one mapping; `prefix` is its dotted path in the record."""

    __slots__ = ("line", "prefix", "source", "values")

    def __init__(self, values: Mapping[str, Any], source: str, line: int, prefix: str = "") -> None:
        self.values, self.source, self.line, self.prefix = values, source, line, prefix

    def fail(self, field: str, problem: str, remedy: str) -> NoReturn:
        raise RecordError(self.source, self.line, self.prefix + field, problem, remedy)

    def _wrong(self, field: str, value: object, wanted: str) -> NoReturn:
        self.fail(
            field, f"expected {wanted}, found {type(value).__name__} {shown(value)}", "Correct the value."
        )

    def _get(self, field: str, default: Any) -> Any:
        value = self.values.get(field, default)
        if value is _MISSING:
            self.fail(field, "the field is missing", "Add it, or bring the file in with `desist import`.")
        return value

    def known(self, fields: frozenset[str]) -> dict[str, Any]:
        """Refuse unknown fields; give back the foreign (`x_`) ones."""
        foreign: dict[str, Any] = {}
        if self.values.keys() <= fields:
            return foreign
        for key in self.values:
            if key in fields:
                continue
            if not isinstance(key, str) or not key.startswith(FOREIGN):
                self.fail(
                    str(key),
                    f"unknown field with value {shown(self.values[key])}",
                    f"Remove it, put it into 'provenance', or begin its name with '{FOREIGN}'.",
                )
            foreign[key] = self.values[key]
        return foreign

    def text(self, field: str, default: Any = _MISSING, *, empty: bool = True) -> Any:
        value = self._get(field, default)
        if value is None and default is None:
            return None
        if not isinstance(value, str):
            self._wrong(field, value, "text")
        if not empty and not value.strip():
            self.fail(field, "the text is empty", "Give it a value.")
        return value

    def count(self, field: str, default: Any = _MISSING, *, least: int = 0) -> Any:
        value = self._get(field, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(field, value, "a whole number")
        if value < least:
            self.fail(
                field, f"{value} is below {least}", "Counts and positions start at 0; correct the value."
            )
        return value

    def number(self, field: str, default: Any = _MISSING, *, high: float | None = None) -> Any:
        """A finite number of at least 0, and at most `high`."""
        value = self._get(field, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong(field, value, "a number")
        if not math.isfinite(value):
            self.fail(field, f"{value} is not finite", "Leave the field out where there is no value.")
        if value < 0 or (high is not None and value > high):
            bounds = "0 or more" if high is None else f"in [0, {high:g}]"
            self.fail(
                field, f"{value} is not {bounds}", "Rescale it; scores are higher where stopping is safer."
            )
        return float(value)

    def truth(self, field: str, default: Any) -> Any:
        value = self._get(field, default)
        if value is None and default is None:
            return None
        if not isinstance(value, bool):
            self._wrong(field, value, "true or false")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.values.get(field)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._wrong(field, value, "an object")
        return value

    def items(self, field: str) -> Sequence[Any]:
        value = self.values.get(field)
        if value is None:
            return ()
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            self._wrong(field, value, "a list")
        return value
