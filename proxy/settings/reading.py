"""Reads a settings file, YAML or TOML, into plain values. Knows nothing of what they mean.

YAML is read as version 1.2 has it: `off`, `on`, `yes` and `no` are words (`mode: off` is a mode), and a key
that stands twice is refused rather than the first one lost.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from desist.proxy.settings.explaining import SettingsError

__all__ = ["read_file"]


class _Loader(yaml.SafeLoader):
    """Safe values, booleans `true` and `false` only, each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_file(path: Path) -> dict[str, Any]:
    """The file's keys and values; `.toml` is TOML, everything else YAML. Raises `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the config file {path} cannot be read: {error}. Check --config.") from error
    kind = "TOML" if path.suffix == ".toml" else "YAML"
    try:
        values = tomllib.loads(text) if kind == "TOML" else yaml.load(text, _Loader)  # a safe loader
    except (tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"the config file {path} is not {kind}: {_where(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"the config file {path} holds {type(values).__name__}, not keys and values.")
    return {str(key): value for key, value in values.items()}


def _where(error: Exception) -> str:
    """What is wrong and where, without the line itself: it may hold a key."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "it cannot be read"
        return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)
