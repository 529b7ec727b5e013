r"""The structure of an answer: tuple, interval, set, list, union, matrix, or a leaf.

Knows brackets, separators and which of them keep an order; does not compute. A text may have several
readings ("1,234" is a number or a list): `readings` gives them all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from desist.data.braces import split_top_level, top_level_tokens
from desist.data.canonical import canonical, compact

__all__ = ["Form", "readings"]

Kind = Literal["leaf", "ordered", "unordered", "matrix"]
_DEEPEST = 12

_NAME = re.compile(
    r"(?P<name>(?:\\[A-Za-z]+\s+(?:[A-Za-z]|\\[A-Za-z]+|[A-Z]{2,3})|[A-Z]{2,4}|[A-Za-z]{3,}|[A-Za-z]|\\[A-Za-z]+)"
    r"(?:_\{?\w+\}?)?'?(?:\((?:[A-Za-z]|\\[A-Za-z]+)\))?)"
    r"\s*(?:=|\\in(?![A-Za-z])|:=|\\to(?![A-Za-z]))\s*(?P<rest>.+)",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"[-+]?\$?\s*\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]).*", re.DOTALL)
_MATRIX = re.compile(
    r"\\begin\s*\{(?P<env>[pbvBV]?matrix|array|smallmatrix)\}(?:\s*\{[clr|]+\})?(?P<body>.*)\\end\s*\{(?P=env)\}\s*",
    re.DOTALL,
)
_WORD_SEPARATOR = re.compile(r"\s+(?:or|and)\s+|,\s*(?:or|and)\s+", re.IGNORECASE)
_COMMAS = frozenset({",", ";"})
_CUP = frozenset({r"\cup"})
_PAIRS = (
    ("(", ")"),
    ("[", "]"),
    ("(", "]"),
    ("[", ")"),
    (r"\{", r"\}"),
    ("{", "}"),
    (r"\langle", r"\rangle"),
)
_EMPTY_SET = re.compile(r"\\(?:emptyset|varnothing)|\{\s*\}|∅")
_RELATION = re.compile(r"(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\[lg]t(?![A-Za-z]))")
_VARIABLE = re.compile(r"[A-Za-z]|\\[a-z]+")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Form:
    """`tag` tells apart what has the same kind: the bracket pair of a tuple or interval, "list", "union"."""

    kind: Kind
    text: str
    tag: str = ""
    parts: tuple[Form, ...] = ()
    name: str = ""


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """Bracket, inside and bracket, where one pair encloses the whole text."""
    for left, right in _PAIRS:
        if text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right):
            inside = text[len(left) : -len(right)]
            opened = re.findall(r"\\[{}]|\\[lr]angle(?![A-Za-z])|[{}()\[\]]", inside)
            depth = 0
            for token in opened:
                depth += 1 if token in ("(", "[", "{", r"\{", r"\langle") else -1
                if depth < 0:
                    break
            if depth == 0:
                return left, inside.strip(), right
    return None


def _parts(texts: list[str], depth: int) -> tuple[Form, ...]:
    return tuple(_form(text, depth + 1) for text in texts)


def _matrix(match: re.Match[str], text: str, depth: int) -> Form:
    rows = [row for row in re.split(r"\\\\|\\cr(?![A-Za-z])", match.group("body")) if row.strip()]
    cells = [[cell.strip() for cell in row.split("&")] for row in rows]
    determinant = "det" if match.group("env") in ("vmatrix", "Vmatrix") else ""
    lines = tuple(Form("ordered", " & ".join(row), "row", _parts(row, depth)) for row in cells)
    return Form("matrix", text, determinant, lines)


def _inequality(text: str, depth: int) -> Form | None:
    """An inequality in one variable as the interval it stands for: `1 <= x < 2` as [1, 2)."""
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    if len(pieces) not in (3, 5) or not all(pieces):
        return None
    terms, signs = pieces[::2], [sign.replace(r"\lt", "<").replace(r"\gt", ">") for sign in pieces[1::2]]
    if signs[0] in (">", r"\ge"):
        terms.reverse()
        signs = [{">": "<", r"\ge": r"\le"}.get(sign, "") for sign in reversed(signs)]
    if any(sign not in ("<", r"\le") for sign in signs):
        return None
    if len(terms) == 2:
        if _VARIABLE.fullmatch(terms[0]):
            terms, signs = [r"-\infty", *terms], ["<", *signs]
        else:
            terms, signs = [*terms, r"\infty"], [*signs, "<"]
    if not _VARIABLE.fullmatch(terms[1]) or terms[1] in (r"\pi", r"\infty"):
        return None
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    return Form("ordered", text, brackets, _parts([terms[0], terms[2]], depth), terms[1])


def _plus_minus(text: str, depth: int) -> Form | None:
    if len(_PLUS_MINUS.findall(text)) != 1 or any(sign in text for sign in ("=", ",", r"\mp")):
        return None
    plus = compact(canonical(_PLUS_MINUS.sub("+", text))).removeprefix("+")
    minus = compact(canonical(_PLUS_MINUS.sub("-", text)))
    return Form("unordered", text, "list", _parts([plus, minus], depth))


def _form(text: str, depth: int = 0, numbers_first: bool = True) -> Form:
    text = text.strip()
    if depth > _DEEPEST:
        return Form("leaf", text)
    named = _NAME.fullmatch(text)
    if named and not re.search(r"[=<>]|\\(?:le|ge|ne)(?![A-Za-z])", named.group("rest")):
        inner = _form(named.group("rest"), depth + 1, numbers_first)
        return Form(inner.kind, inner.text, inner.tag, inner.parts, compact(named.group("name")))
    if match := _MATRIX.fullmatch(text):
        return _matrix(match, text, depth)
    if len(members := split_top_level(text, _CUP)) > 1 and all(members):
        return Form("unordered", text, "union", _parts(members, depth))
    if (pair := _enclosed(text)) is not None:
        return _bracketed(pair, text, depth)
    if (interval := _inequality(text, depth)) is not None:
        return interval
    if _EMPTY_SET.fullmatch(text):
        return Form("unordered", text, "list")
    if not (numbers_first and _THOUSANDS.fullmatch(text)):
        members = [
            piece.strip()
            for part in split_top_level(text, _COMMAS)
            for piece in _words_apart(part)
            if piece.strip()
        ]
        if len(members) > 1:
            return Form("unordered", text, "list", _parts(members, depth))
    return _plus_minus(text, depth) or Form("leaf", text)


def _words_apart(text: str) -> list[str]:
    """Split "a or b" at the top level; "12 hours and 5 minutes" is left whole."""
    pieces = _WORD_SEPARATOR.split(text)
    short = all(
        re.search(r"\d|\\|^.{1,2}$", piece) and not re.search(r"[A-Za-z]{3,}\s*$", piece) for piece in pieces
    )
    return pieces if len(pieces) > 1 and short else [re.sub(r"^(?:or|and)\s+", "", text)]


def _bracketed(pair: tuple[str, str, str], text: str, depth: int) -> Form:
    left, inside, right = pair
    members = split_top_level(inside, _COMMAS) if inside else []
    if left == "{" and len(members) == 1:
        return _form(members[0], depth + 1)
    if left in (r"\{", "{"):
        conditional = any(token in (":", "|", r"\mid") for _, token in top_level_tokens(inside))
        return Form("leaf", text) if conditional else Form("unordered", text, "list", _parts(members, depth))
    if len(members) == 1 and left + right == "()":
        return _form(members[0], depth + 1)
    if not all(members):
        return Form("leaf", text)
    return Form("ordered", text, left + right, _parts(members, depth))


@lru_cache(maxsize=65_536)
def readings(text: str) -> tuple[Form, ...]:
    """All readings of an answer in canonical spelling, the likeliest first."""
    first = _form(text)
    if _THOUSANDS.fullmatch(text):
        return (first, _form(text, numbers_first=False))
    return (first,)
