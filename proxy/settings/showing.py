"""Settings told in full: each value with where it came from, and the table of all settings for the docs.

Knows fields and their descriptions. Secrets are masked.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from desist.proxy.settings.explaining import leaf_fields
from desist.proxy.settings.loading import Loaded
from desist.proxy.settings.whole import Settings

__all__ = ["settings_table", "shown_values"]


def shown_values(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """By path: `value` (JSON types, secrets masked) and `from` (flag, env, file or default)."""
    return {
        path: {"value": value, "from": loaded.origin(path)} for path, value in _flat(loaded.settings.shown())
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and path != "control.efforts":
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def settings_table() -> str:
    """All settings as a Markdown table: path, type and bounds, default, what it does."""
    rows = ["| setting | takes | default | |", "|---|---|---|---|"]
    for path, field in leaf_fields(Settings):
        cells = (f"`{path.replace('*', 'NAME')}`", _takes(field), _default(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _takes(field: FieldInfo) -> str:
    told = _kind(field.annotation)
    bounds = [text for rule in field.metadata if (text := _bound(rule))]
    return f"{told}, {' and '.join(bounds)}" if bounds else told


def _kind(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        bounds = [
            text
            for info in kind.__metadata__
            for rule in (info.metadata if isinstance(info, FieldInfo) else [info])
            if (text := _bound(rule))
        ]
        return ", ".join([_kind(args[0]), *bounds])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in args)
    others = [each for each in args if each is not type(None)]
    if type(None) in args:
        return f"{' or '.join(_kind(each) for each in others)}; or none"
    if origin in (tuple, list):
        return f"list of {_plural(args[0])}"
    if origin in (dict, Mapping):
        return f"name: {_kind(args[1])}"
    return _NAMES.get(kind, "keys and values")


_NAMES: dict[Any, str] = {
    bool: "`true`, `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
}


def _plural(kind: Any) -> str:
    return {str: "texts", Path: "paths", SecretStr: "secrets"}.get(kind, "texts or objects")


def _bound(rule: Any) -> str:
    if isinstance(rule, annotated_types.Ge):
        return f"≥ {rule.ge:g}" if isinstance(rule.ge, (int, float)) else ""
    if isinstance(rule, annotated_types.Gt):
        return f"> {rule.gt:g}" if isinstance(rule.gt, (int, float)) else ""
    if isinstance(rule, annotated_types.Le):
        return f"≤ {_plain(rule.le)}"
    if isinstance(rule, annotated_types.Lt):
        return f"< {_plain(rule.lt)}"
    return ""


def _plain(value: Any) -> str:
    return f"{value:,}".replace(",", "") if isinstance(value, int) else f"{value:g}"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "must be given"
    if value is None:
        return "none"
    if value in ((), {}):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (tuple, list)):
        return "`" + re.sub(r"\s+", " ", ", ".join(map(str, value))) + "`"
    if isinstance(value, dict):
        return "`" + ", ".join(f"{key}: {'none' if v is None else v}" for key, v in value.items()) + "`"
    return f"`{value}`"
