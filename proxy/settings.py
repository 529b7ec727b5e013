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
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from desist.data.errors import ControlError

__all__ = [
    "ControlSettings",
    "LimitSettings",
    "SamplingSettings",
    "Settings",
    "SettingsError",
    "StreamSettings",
    "UpstreamSettings",
    "load_settings",
]

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Budget = Annotated[int, Field(ge=0)]


class SettingsError(ControlError):
    """A setting that is unknown, malformed or out of bounds. The message lists every one of them."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ControlSettings(_Group):
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


class SamplingSettings(_Group):
    """Sampling of an embedded engine for requests that do not say; none: the model's own default.

    Upstream servers use their own.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)


class LimitSettings(_Group):
    """What one client may ask."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    max_choices: int = Field(default=16, ge=1, description="n, and n times the number of prompts")
    max_in_flight: int = Field(
        default=512, ge=1, description="requests served at once; more are answered 503"
    )


class StreamSettings(_Group):
    """How streams are written."""

    heartbeat_s: float = Field(
        default=15.0, ge=0, le=300, description="comment line in silent streams; 0 = never"
    )
    reasoning_field: Literal["both", "reasoning", "reasoning_content"] = Field(
        default="both", description="message field(s) that carry the thinking; always the same text"
    )
    desist_object: bool = Field(default=True, description="add the `desist` object to responses")


class UpstreamSettings(_Group):
    """The OpenAI-compatible server behind the proxy."""

    url: str = Field(description="for example http://127.0.0.1:8000/v1")
    api_key: SecretStr | None = Field(
        default=None, description="sent upstream; none: the client's own key is"
    )
    think_open: str = Field(default="<think>", min_length=1)
    think_close: str = Field(default="</think>", min_length=1)
    thinking_opened_by_template: bool = Field(
        default=False,
        description="the chat template opens the thinking block and the server does not parse it",
    )
    profile: str | None = Field(default=None, description="model profile: cues and hand-off")
    chars_per_token: float = Field(
        default=4.0, gt=0.5, le=20, description="used only where the server counts nothing"
    )
    continuous_usage: bool = Field(
        default=True, description="ask for token counts in every chunk when a budget is set"
    )
    connect_s: Seconds = 10.0
    first_byte_s: Seconds = 600.0
    idle_s: Seconds = 300.0
    total_s: Seconds = 3600.0
    max_connections: int = Field(default=1024, ge=1)

    @field_validator("url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        url = value.strip().rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address such as http://127.0.0.1:8000/v1")
        return url if url.endswith("/v1") else url + "/v1"


class Settings(BaseSettings):
    """Settings of one proxy process. Frozen; build with `load_settings` or with keyword arguments."""

    model_config = SettingsConfigDict(
        env_prefix="DESIST_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8100, ge=0, le=65535, description="0: any free port")
    engine: Literal["embedded", "upstream"] = "embedded"
    model: str | None = Field(
        default=None, description="folder of the embedded model; none: the built-in reasoner"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    probe: Path | None = Field(default=None, description="probe artefact; none: the built-in one")
    certificates: tuple[Path, ...] = Field(default=(), description="certificates, the default one first")
    api_keys: tuple[SecretStr, ...] = Field(default=(), description="client keys; empty: no key is asked for")
    drain_s: float = Field(default=30.0, ge=0, le=3600, description="time for streams to finish at shutdown")
    upstream: UpstreamSettings | None = None
    control: ControlSettings = ControlSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()

    @model_validator(mode="after")
    def _upstream_named(self) -> Self:
        if self.engine == "upstream" and self.upstream is None:
            raise ValueError("engine is 'upstream' but upstream.url is not set: give --upstream URL")
        return self

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
