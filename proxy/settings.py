"""All settings of the proxy: defaults, file, environment and flags, with bounds.

Precedence: flags > environment (`DESIST_`, nested by `__`) > file (YAML or TOML) > default. Unknown keys
and bad values fail at start and name the key. Knows nothing of engines or requests; library code receives
a finished `Settings` and never reads the environment.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from desist.data.errors import ControlError
from desist.proxy.engine_settings import Group, UpstreamSettings, VllmSettings
from desist.proxy.monitor_settings import MonitorSettings

__all__ = [
    "ControlSettings",
    "LimitSettings",
    "MonitorSettings",
    "SamplingSettings",
    "Settings",
    "SettingsError",
    "StreamSettings",
    "UpstreamSettings",
    "VllmSettings",
    "load_settings",
]

Budget = Annotated[int, Field(ge=0)]


class SettingsError(ControlError):
    """A setting that is unknown, malformed or out of bounds. The message lists every one of them."""


class ControlSettings(Group):
    """What is done with a request that asks for nothing itself."""

    mode: Literal["off", "shadow", "active"] = Field(
        default="active", description="off, shadow (score only), active"
    )
    alpha: str | None = Field(default=None, description="tolerated risk; none: the first certificate listed")
    budget: Budget | None = Field(default=None, description="hard limit on reasoning tokens")
    answer: Literal["write", "extract"] = Field(default="write", description="what a stop does")
    min_answer_tokens: int = Field(default=256, ge=1, description="tokens kept for the answer")
    efforts: dict[str, Budget | None] = Field(
        default={"none": 0, "minimal": 128, "low": 1024, "medium": 4096, "high": None},
        description="reasoning_effort names and their budgets in reasoning tokens; empty: effort is ignored",
    )

    @field_validator("alpha", mode="before")
    @classmethod
    def _alpha_text(cls, value: object) -> object:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


class SamplingSettings(Group):
    """Sampling of an embedded engine for requests that do not say; none: the model's own default.

    Upstream servers use their own.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)


class LimitSettings(Group):
    """What one client may ask."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    max_choices: int = Field(default=16, ge=1, description="n, and n times the number of prompts")
    max_in_flight: int = Field(
        default=512, ge=1, description="requests served at once; more are answered 503"
    )


class StreamSettings(Group):
    """How streams are written."""

    heartbeat_s: float = Field(
        default=15.0, ge=0, le=300, description="comment line in silent streams; 0 = never"
    )
    reasoning_field: Literal["both", "reasoning", "reasoning_content"] = Field(
        default="both", description="message field(s) that carry the thinking; always the same text"
    )
    desist_object: bool = Field(default=True, description="add the `desist` object to responses")


class Settings(BaseSettings):
    """Settings of one proxy process. Frozen; build with `load_settings` or with keyword arguments."""

    model_config = SettingsConfigDict(
        env_prefix="DESIST_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8100, ge=0, le=65535, description="0: any free port")
    engine: Literal["embedded", "upstream", "vllm"] = "embedded"
    model: str | None = Field(
        default=None, description="model folder (vllm: or a hub name); none: the built-in reasoner"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    probe: Path | None = Field(default=None, description="probe artefact; none: the built-in one")
    certificates: tuple[Path, ...] = Field(default=(), description="certificates, the default one first")
    force_certificates: bool = Field(
        default=False, description="use certificates that do not fit what runs, all marked uncertified"
    )
    activation: Path | None = Field(
        default=None, description="folder of the active pair (desist certificate activate); followed live"
    )
    api_keys: tuple[SecretStr, ...] = Field(default=(), description="client keys; empty: no key is asked for")
    drain_s: float = Field(default=30.0, ge=0, le=3600, description="time for streams to finish at shutdown")
    upstream: UpstreamSettings | None = None
    vllm: VllmSettings = VllmSettings()
    control: ControlSettings = ControlSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
    monitor: MonitorSettings = MonitorSettings()

    @model_validator(mode="after")
    def _upstream_named(self) -> Self:
        if self.engine == "upstream" and self.upstream is None:
            raise ValueError("engine is 'upstream' but upstream.url is not set: give --upstream URL")
        return self

    @property
    def serves_builtin(self) -> bool:
        """Whether the built-in reasoner runs, in a process that this proxy starts itself."""
        own = self.engine == "embedded" or (self.engine == "vllm" and self.upstream is None)
        return own and self.model is None

    def shown(self) -> dict[str, Any]:
        """All values as JSON types, secrets masked."""
        return self.model_dump(mode="json")


def load_settings(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags, environment, `config` file and defaults, in this order of precedence.

    `flags` are nested plain values; those that are None are left out. Raises `SettingsError`.
    """
    _refuse_misspelt(os.environ if environ is None else environ)
    values = {} if config is None else _read_file(config)

    class _Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    try:
        return _Loaded(**_without_none(flags or {}))
    except ValidationError as error:
        raise SettingsError(_explain(error, config)) from error
    except ValueError as error:  # an environment value that is no JSON where an object is needed
        raise SettingsError(f"the environment holds a setting that cannot be read: {error}") from error


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the config file {path} cannot be read: {error}. Check --config.") from error
    try:
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        kind = "TOML" if path.suffix == ".toml" else "YAML"
        raise SettingsError(f"the config file {path} is not {kind}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"the config file {path} holds {type(values).__name__}, not keys and values.")
    return {str(key): value for key, value in values.items()}


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Other parts read DESIST_ names too, so only names close to a setting count as misspelt."""
    known = [f"DESIST_{name.upper()}" for name in Settings.model_fields]
    for name in environ:
        head = name.upper().partition("__")[0]
        if not head.startswith("DESIST_") or head in known:
            continue
        close = difflib.get_close_matches(head, known, n=1, cutoff=0.8)
        if close:
            raise SettingsError(f"the environment variable {name} is not a setting. Did you mean {close[0]}?")


def _explain(error: ValidationError, config: Path | None) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        key = ".".join(str(part) for part in problem["loc"]) or "settings"
        secret = "key" in key
        value = (
            ""
            if problem["type"] == "missing" or not problem["loc"] or secret
            else f" is {problem['input']!r}"
        )
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "not a known setting" + _suggest(problem["loc"])
        lines.append(f"{key}{value}: {what}")
    where = f" (file {config}, environment DESIST_*, flags)" if config else " (environment DESIST_*, flags)"
    return "bad settings" + where + ":\n  " + "\n  ".join(lines)


def _suggest(loc: tuple[int | str, ...]) -> str:
    model: Any = Settings
    for part in loc[:-1]:
        found = model.model_fields.get(str(part)) if hasattr(model, "model_fields") else None
        if found is None:
            return ""
        model = type(found.default) if isinstance(found.default, BaseModel) else UpstreamSettings
    close = difflib.get_close_matches(str(loc[-1]), list(model.model_fields), n=1)
    return f". Did you mean {close[0]}?" if close else f". Known: {', '.join(model.model_fields)}"
