"""What is wrong with settings, in words: the path of each bad key, its value, where it stood, and a remedy.

Knows the fields of all groups, so that an unknown key gets the name that was probably meant, in its right
place. Values that may be secret are never repeated.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from desist.data.errors import ControlError
from desist.proxy.settings.whole import Settings

__all__ = ["SettingsError", "explain", "leaf_fields", "type_at"]

# Names that other servers use, and requests, for what is set here.
_ELSEWHERE = {
    "thinking_token_budget": "control.budget",
    "thinking_budget": "control.budget",
    "budget_tokens": "control.budget",
    "max_thinking_tokens": "control.budget",
    "reasoning_effort": "control.efforts",
    "api_key": "api_keys (of clients) or upstream.api_key",
    "tensor_parallel_size": "vllm.args",
    "max_model_len": "vllm.args",
    "reasoning_parser": "vllm.args",
    "timeout": "upstream.total_s",
    "log_level": "log.level",
    "log_format": "log.format",
    "workers": "the flag --workers",
}


class SettingsError(ControlError):
    """A setting that is unknown, malformed or out of bounds. The message lists every one of them."""


def explain(error: ValidationError, config: Path | None, origins: Mapping[str, str]) -> str:
    """All problems of `error`, a line each."""
    lines = [_line(problem, origins) for problem in error.errors(include_url=False, include_context=False)]
    where = f" (file {config}, environment DESIST_*, flags)" if config else " (environment DESIST_*, flags)"
    return "bad settings" + where + ":\n  " + "\n  ".join(lines)


def _line(problem: Any, origins: Mapping[str, str]) -> str:
    loc = problem["loc"]
    key = ".".join(str(part) for part in loc) or "settings"
    hidden = problem["type"] == "missing" or not loc or _is_secret(loc)
    told = "" if hidden or isinstance(problem["input"], BaseModel) else f" is {_short(problem['input'])}"
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        what = "not a known setting" + _suggest(loc)
    source = next((origins[path] for path in _prefixes(loc) if path in origins), None)
    return f"{key}{told}: {what}" + (f" [{source}]" if source else "")


def _prefixes(loc: tuple[int | str, ...]) -> Iterator[str]:
    for length in range(len(loc), 0, -1):
        yield ".".join(str(part) for part in loc[:length])


def _is_secret(loc: tuple[int | str, ...]) -> bool:
    """Also what was given in the place of a secret, and keys of our own misspelt."""
    return any(
        word in str(part).lower() for part in loc for word in ("key", "secret", "token", "password", "auth")
    ) and not any(str(part).endswith("_file") for part in loc)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _suggest(loc: tuple[int | str, ...]) -> str:
    name = str(loc[-1])
    siblings = _fields(type_at(loc[:-1]))
    close = difflib.get_close_matches(name.replace("-", "_"), list(siblings), n=1)
    if close:
        return f". Did you mean {close[0]}?"
    if name in _ELSEWHERE:
        return f". That is {_ELSEWHERE[name]}"
    everywhere = {path.rpartition(".")[2]: path for path, _ in leaf_fields(Settings) if "*" not in path}
    if found := difflib.get_close_matches(name.replace("-", "_"), list(everywhere), n=1, cutoff=0.8):
        return f" here. Did you mean {everywhere[found[0]]}?"
    return f". Known: {', '.join(siblings)}" if siblings else ""


def type_at(loc: tuple[int | str, ...]) -> Any:
    """The type of the value at a place in the settings; None where there is no such place."""
    found: Any = Settings
    for part in loc:
        found = _inner(found)
        fields = _fields(found)
        if fields:
            found = fields[str(part)].annotation if str(part) in fields else None
        elif get_origin(found) in (dict, Mapping):
            found = get_args(found)[1]
        elif get_origin(found) in (tuple, list):
            found = get_args(found)[0]
        else:
            return None
    return _inner(found)


def leaf_fields(group: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting below a group, in order, by path; `*` stands for a name that the operator gives."""
    for name, info in group.model_fields.items():
        inner = _inner(info.annotation)
        path = f"{prefix}{name}"
        if get_origin(inner) is dict and _fields(_inner(get_args(inner)[1])):
            yield from leaf_fields(_inner(get_args(inner)[1]), f"{path}.*.")
        elif _fields(inner):
            yield from leaf_fields(inner, f"{path}.")
        else:
            yield path, info


def _fields(group: Any) -> dict[str, FieldInfo]:
    return dict(group.model_fields) if isinstance(group, type) and issubclass(group, BaseModel) else {}


def _inner(kind: Any) -> Any:
    """The type without `| None` and annotations."""
    if get_origin(kind) is typing.Annotated:
        return _inner(get_args(kind)[0])
    others = [each for each in get_args(kind) if each is not type(None)]
    if type(None) in get_args(kind) and len(others) == 1 and get_origin(kind) is not dict:
        return _inner(others[0])
    return kind
