"""Reads what one request says about its thinking, from its body and its headers, by the table.

Every value passes the one rule of its kind, whichever field it came in; a value that does not is refused with
400 naming that field. Does not decide which of several values holds: `budget` and the resolver do.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar, cast

from desist.controller.core import AnswerMode, Mode
from desist.proxy.controls.aliases import ALIASES, CONTAINERS, OWN, Alias, dig
from desist.proxy.controls.misplaced import misplaced
from desist.proxy.controls.values import ReasoningFormat, from_header
from desist.proxy.errors import ApiError, shorten

__all__ = ["Asked", "Said", "own_headers", "read_own", "with_natives"]

T = TypeVar("T")
_PREFIX = "x-desist-"
# Headers of ours that are no controls of thinking. (`lifeline` reads the time limits.)
_OTHER_HEADERS = frozenset({"x-desist-timeout", "x-desist-first-byte-timeout", "x-desist-idle-timeout"})
_HEADERS = {own.header: own for own in OWN}
_REMEDIES = {
    "budget": "Give an integer: -1 means no limit, 0 closes thinking at once, null says nothing.",
    "effort": "Give one of the server's effort names, or an exact desist.budget.",
    "switch": "Correct it, or leave it out.",
    "format": "Correct it, or leave it out.",
}


class Said(NamedTuple, Generic[T]):
    """A value, and the field that said it."""

    value: T
    by: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request says. `own_*` and the first six: the `desist` object, else our header.

    The rest is said in the ecosystem's fields, in the order of the table. `thinking`: a switch that the chat
    template obeys itself (False wins where two differ); `switches`: the others.
    """

    mode: Said[Mode] | None = None
    alpha: Said[Fraction] | None = None
    threshold: Said[float] | None = None
    answer: Said[AnswerMode] | None = None
    own_format: Said[ReasoningFormat] | None = None
    object: bool | None = None
    own_budget: Said[int] | None = None
    own_effort: Said[str] | None = None
    budgets: tuple[Said[int], ...] = ()
    efforts: tuple[Said[str], ...] = ()
    switches: tuple[Said[bool], ...] = ()
    formats: tuple[Said[ReasoningFormat], ...] = ()
    thinking: Said[bool] | None = None

    @property
    def off(self) -> Said[bool] | None:
        """The field that says that there shall be no thinking, if one does."""
        if self.thinking is not None and not self.thinking.value:
            return self.thinking
        return next((switch for switch in self.switches if not switch.value), None)


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The controls among a request's headers, by name. Raises `ApiError` 400 for one that is misspelt."""
    found = {}
    for name in headers:
        lower = name.lower()
        if not lower.startswith(_PREFIX) or lower in _OTHER_HEADERS:
            continue
        if lower not in _HEADERS:
            close = difflib.get_close_matches(lower, _HEADERS, n=1)
            known = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(_HEADERS)}."
            raise ApiError(
                400,
                f"header {lower} is not a known header of desist. {known}",
                param=lower,
                code="unknown_field",
            )
        found[lower] = headers[name]
    return found


def read_own(own: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """What the `desist` object (`own`, checked already) and our headers say, the object first.

    Raises `ApiError` 400 that names the header.
    """
    ours = _ours(own, own_headers(headers))
    return Asked(
        mode=ours.get("mode"),
        alpha=ours.get("alpha"),
        threshold=ours.get("threshold"),
        answer=ours.get("answer"),
        own_format=ours.get("reasoning_format"),
        object=ours["object"].value if "object" in ours else None,
        own_budget=ours.get("budget"),
        own_effort=ours.get("effort"),
    )


def with_natives(asked: Asked, body: Mapping[str, Any]) -> Asked:
    """`asked` with what the ecosystem's fields in `body` say. Raises `ApiError` 400 that names the field."""
    _check_places(body)
    said: dict[str, list[Said[Any]]] = {"budget": [], "effort": [], "switch": [], "format": []}
    thinking: Said[bool] | None = None
    for alias in ALIASES:
        value = _read(alias, body)
        if value is None:
            continue
        if alias.kind == "switch" and alias.template:
            thinking = Said(value, alias.name) if thinking is None or not value else thinking
            continue
        kind = "effort" if isinstance(value, str) and alias.kind == "switch" else alias.kind
        said[kind].append(Said(value, alias.name))
    return replace(
        asked,
        budgets=tuple(said["budget"]),
        efforts=tuple(said["effort"]),
        switches=tuple(said["switch"]),
        formats=tuple(said["format"]),
        thinking=thinking,
    )


def _ours(own: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Said[Any]]:
    """Each of our own values: the `desist` object first, then the header."""
    said = {}
    for row in OWN:
        if (value := own.get(row.name)) is not None:
            said[row.name] = Said(value, f"desist.{row.name}")
        elif row.header in headers:
            text = headers[row.header]
            try:
                said[row.name] = Said(from_header(row.rule, text), row.header)
            except ValueError as error:
                raise ApiError(
                    400,
                    f"header {row.header} is {shorten(text)}: {error}. Send {row.takes}.",
                    param=row.header,
                    code="invalid_value",
                ) from error
    return said


def _read(alias: Alias, body: Mapping[str, Any]) -> Any:
    found = dig(body, alias.path)
    try:
        return alias.read(found)
    except ValueError as error:
        raise ApiError(
            400,
            f"'{alias.name}' is {shorten(found)}: {error}. {_REMEDIES[alias.kind]}",
            param=alias.name,
            code="invalid_value",
        ) from error


def _check_places(body: Mapping[str, Any]) -> None:
    for name in CONTAINERS:
        held = body.get(name)
        if held is not None and not isinstance(held, Mapping):
            raise ApiError(
                400,
                f"'{name}' is {shorten(cast(object, held))}. Give an object, or leave it out.",
                param=name,
                code="invalid_value",
            )
    if (found := misplaced(body)) is not None:
        where, right = found
        raise ApiError(
            400,
            f"'{where}' has no effect there: no server reads a budget in that place. Send desist.budget, or "
            f"{right} in the body itself.",
            param=where,
            code="misplaced_field",
        )
