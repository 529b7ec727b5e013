"""Judges by their name.

A name is KIND, KIND:REST, or KIND[OPTION=VALUE,...]:REST. Judges that start programs are made for an
operator who names them (`operator_judge`), never because a trace or a certificate says so (`get_judge`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from desist.data.errors import DataError
from desist.data.judging.base import Case, Judge, same_value
from desist.data.judging.json_answers import JsonJudge
from desist.data.judging.mathematics import MathJudge
from desist.data.judging.option import OptionJudge
from desist.data.judging.tool import ToolJudge

__all__ = ["answers_equal", "get_judge", "operator_judge", "register_judge"]

Options = Mapping[str, str]
Maker = Callable[[str | None, Options], Judge]
_NAME = re.compile(r"([A-Za-z][\w-]*)(?:\[([^\]]*)\])?(?::(.*))?", re.DOTALL)


def _plain(judge: Judge) -> Maker:
    """The maker of a judge that takes nothing behind its name."""

    def make(rest: str | None, options: Options) -> Judge:
        if rest is not None or options:
            raise DataError(f"judge {judge.name!r} takes nothing behind its name. Write {judge.name}.")
        return judge

    return make


def _json(rest: str | None, options: Options) -> Judge:
    if options:
        raise DataError("judge 'json' takes no options. Write json or json:FIELD[,FIELD...].")
    return JsonJudge(() if rest is None else rest.split(","))


_KINDS: dict[str, tuple[str, Maker]] = {"json": ("json, json:FIELD[,FIELD...]", _json)}


def register_judge(judge: Judge) -> None:
    """Make a judge known by its name. Raises `DataError` where the name is taken."""
    if judge.name in _KINDS:
        raise DataError(f"a judge named {judge.name!r} is registered already. Give this one another name.")
    _KINDS[judge.name] = (judge.name, _plain(judge))


def _made(name: str) -> Judge:
    match = _NAME.fullmatch(name.strip())
    kind = match.group(1) if match else name
    if match is None or kind not in _KINDS:
        known = ", ".join(sorted(words for words, _ in _KINDS.values()))
        raise DataError(f"no judge is named {name!r}. Known judges: {known}.")
    return _KINDS[kind][1](match.group(3), _options(name, match.group(2)))


def _options(name: str, text: str | None) -> Options:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not key or not value or key in found:
            raise DataError(f"judge {name!r}: {part!r} is no option. Write KIND[OPTION=VALUE,...]:REST.")
        found[key] = value
    return found


@lru_cache(maxsize=256)
def get_judge(name: str) -> Judge:
    """The judge of that name. Raises `DataError` where there is none, or where it would start programs."""
    judge = _made(name)
    if judge.runs_commands:
        raise DataError(
            f"judge {name!r} starts a program, so a file may not choose it. Name it yourself, with --judge "
            "or in the settings."
        )
    return judge


def operator_judge(name: str) -> Judge:
    """The judge of that name, also one that starts programs: only for a name that an operator gave."""
    return _made(name)


def answers_equal(a: str | None, b: str | None, judge: str = "math") -> bool:
    r"""Whether two extracted answers are the same for the named judge.

    Two missing answers (None) are the same; a missing one and a given one are not, and neither are two
    that the judge cannot decide on. Symmetric and reflexive. Raises `DataError` for an unknown judge.

    >>> answers_equal(r"\frac{3}{4}", "0.75"), answers_equal("2", "12"), answers_equal("(2,3)", "(1,3)")
    (True, False, False)
    """
    return same_value(get_judge(judge), a, b, Case()).outcome == "equal"


register_judge(MathJudge())
register_judge(OptionJudge())
register_judge(ToolJudge())
