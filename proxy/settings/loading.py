"""Loads settings: flags > environment (`DESIST_`, nested by `__`) > file (YAML or TOML) > default.

Knows where each value came from. Unknown keys and bad values fail here and name the key. Library code
receives a finished `Settings` and never reads the environment.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as EnvError

from desist.proxy.settings.explaining import SettingsError, explain
from desist.proxy.settings.reading import read_file
from desist.proxy.settings.whole import Settings

__all__ = ["Loaded", "Origin", "Source", "load_settings", "load_with_origins"]

Origin = Literal["flag", "env", "file", "default"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where their values came from. `origins`: by path such as `control.mode`.

    A path that is not there has its default.
    """

    settings: Settings
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def origin(self, path: str) -> Origin:
        """Of a value, or of the whole that was given it in one piece."""
        while path:
            if (found := self.origins.get(path)) is not None:
                return found
            path = path.rpartition(".")[0]
        return "default"


@dataclass(frozen=True, slots=True)
class Source:
    """Where settings are read from, and read again: a file and flags, and the environment of the process."""

    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Loaded:
        """As they are now. Raises `SettingsError`."""
        return load_with_origins(self.config, self.flags)


class _Env(Settings, BaseSettings):
    """The same fields, for the library that reads them from the environment."""

    model_config = SettingsConfigDict(env_prefix="DESIST_", env_nested_delimiter="__", extra="forbid")


def load_settings(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags, environment, `config` file and defaults, in this order of precedence.

    `flags` are nested plain values; those that are None are left out. Raises `SettingsError`.
    """
    return load_with_origins(config, flags, environ).settings


def load_with_origins(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """As `load_settings`, with where each value came from. `environ`: None is that of the process."""
    variables = os.environ if environ is None else environ
    _refuse_misspelt(variables)
    sources: list[tuple[Origin, Mapping[str, Any]]] = [
        ("file", {} if config is None else read_file(config)),
        ("env", _from_environment(variables)),
        ("flag", _without_none(flags or {})),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for origin, given in sources:
        _lay_over(values, given, origin, origins)
    try:
        return Loaded(Settings.model_validate(values), origins)
    except ValidationError as error:
        raise SettingsError(explain(error, config, origins)) from error


class _Variables(EnvSettingsSource):
    """The library's reader over the variables it is given, not those of the process."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._given = variables
        super().__init__(_Env)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._given.items()}


def _from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    listed = {
        name: _as_list(value) if name.upper() in _LISTS else value
        for name, value in variables.items()
        if name.upper().startswith("DESIST_")
    }
    try:
        return _Variables(listed)()
    except EnvError as error:  # no JSON where an object or a list is needed
        why = f"{error}: {error.__cause__}" if error.__cause__ is not None else str(error)
        raise SettingsError(
            f"the environment holds a setting that cannot be read: {why}. Write JSON there."
        ) from None


_LISTS = ("DESIST_API_KEYS", "DESIST_OPERATOR_KEYS", "DESIST_CERTIFICATES", "DESIST_ALLOWED_HOSTS")


def _as_list(value: str) -> str:
    """JSON for a list that was written with commas, as one does in an environment."""
    import json

    if value.lstrip().startswith("["):
        return value
    return json.dumps([each.strip() for each in value.split(",") if each.strip()])


def _lay_over(
    below: dict[str, Any],
    above: Mapping[str, Any],
    origin: Origin,
    origins: dict[str, Origin],
    prefix: str = "",
) -> None:
    """Put the values of one source over those before it, key by key, and note whose each is."""
    for key, value in above.items():
        path = f"{prefix}{key}"
        beneath = below.get(key)
        if isinstance(value, Mapping) and (value or isinstance(beneath, dict)):
            if not isinstance(beneath, dict):
                below[key] = beneath = {}
                _forget(path, origins)
            _lay_over(beneath, value, origin, origins, f"{path}.")
            continue
        below[key] = value
        _forget(path, origins)
        origins[path] = origin


def _forget(path: str, origins: dict[str, Origin]) -> None:
    for other in [each for each in origins if each == path or each.startswith(f"{path}.")]:
        del origins[other]


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_given(values))


def _given(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            kept = _without_none(value)
            if kept or not value:
                yield key, kept
        elif value is not None:
            yield key, value


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Other parts read DESIST_ names too, so only names close to a setting count as misspelt."""
    known = [name.upper() for name in Settings.model_fields]
    for name in environ:
        before, _, head = name.upper().partition("__")[0].partition("DESIST_")
        if before or not head or head in known:
            continue
        close = difflib.get_close_matches(head, known, n=1, cutoff=0.8)
        if close:
            raise SettingsError(
                f"the environment variable {name} is not a setting. Did you mean DESIST_{close[0]}?"
            )
