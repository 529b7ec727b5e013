"""The rules for values, one for each kind of field, the same through every alias, header and object.

A rule takes a JSON value and gives its meaning, or raises `ValueError` whose text says what may stand there.
JSON's null is the same as a field that was not sent: None. Knows no fields and no requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from desist.controller.core import AnswerMode, Mode

__all__ = [
    "NO_LIMIT",
    "ReasoningFormat",
    "answer_value",
    "budget_value",
    "effort_value",
    "flag_value",
    "format_value",
    "from_header",
    "mode_value",
    "parse_alpha",
    "threshold_value",
]

ReasoningFormat = Literal["field", "inline", "none"]

NO_LIMIT = -1
"""A budget that asks for none. Unlike null it is said: it lifts the server's default."""

_MOST = 2**63 - 1
_ALPHA = re.compile(r"(\d{1,9}/[1-9]\d{0,8})|(\d{0,3}\.?\d{1,20}([eE]-\d{1,2})?)")
_WHOLE = re.compile(r"-?\d{1,19}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def budget_value(value: object) -> int | None:
    """Reasoning tokens: 0 closes thinking at once, `NO_LIMIT` asks for no limit. No float, text or bool."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number of tokens")
    if not NO_LIMIT <= value <= _MOST:
        raise ValueError("must be -1 or more, and fit into 64 bits")
    return value


def effort_value(value: object) -> str | None:
    """The name of an effort; which names there are is a setting."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > 64:
        raise ValueError("must be the name of an effort, such as 'low'")
    return value


def flag_value(value: object) -> bool | None:
    """True or false and nothing that stands for it."""
    if value is not None and not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def mode_value(value: object) -> Mode | None:
    """off, shadow or active."""
    return cast("Mode | None", _one_of(value, get_args(Mode)))


def answer_value(value: object) -> AnswerMode | None:
    """write or extract."""
    return cast("AnswerMode | None", _one_of(value, get_args(AnswerMode)))


def format_value(value: object) -> ReasoningFormat | None:
    """field, inline or none."""
    return cast("ReasoningFormat | None", _one_of(value, get_args(ReasoningFormat)))


def threshold_value(value: object) -> float | None:
    """A score from 0 to 1."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(value)


def parse_alpha(value: object) -> Fraction:
    """An exact alpha from a number or a text such as "0.05" or "1/20". Raises ValueError."""
    if isinstance(value, Fraction):
        alpha = value
    elif isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be a number or a text such as '0.05' or '1/20'")
    elif not _ALPHA.fullmatch(text := str(value).strip()):
        raise ValueError("must be a number between 0 and 1, such as 0.05 or '1/20'")
    else:
        alpha = Fraction(text)
    if not 0 < alpha < 1:
        raise ValueError("must lie between 0 and 1, both excluded")
    return alpha


def from_header(rule: Callable[[object], Any], text: str) -> Any:
    """The value of a header under `rule`: headers carry texts, so numbers and flags are read from them."""
    text = text.strip()
    if rule is flag_value:
        return rule(_word(text.lower(), {"true": True, "on": True, "1": True, "false": False, "off": False,
                                         "0": False}))  # fmt: skip
    if rule is budget_value:
        return rule(int(text) if _WHOLE.fullmatch(text) else text)
    if rule is threshold_value:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        return rule(number)
    if rule in (mode_value, answer_value, format_value):
        return rule(text.lower())
    return rule(text)


def _word(text: str, words: Mapping[str, object]) -> object:
    return words.get(text, text)


def _one_of(value: object, allowed: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}")
    return value
