"""All settings of one proxy process, put together from their groups.

Knows what must hold between them. Reads the key files that they name; does not read the settings file or the
environment: `loading` does.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator

from desist.data.errors import ControlError
from desist.proxy.access.keys import Key, checked_key, read_key_file
from desist.proxy.settings.access import KeySettings, TenantSettings
from desist.proxy.settings.control import ControlSettings, SamplingSettings
from desist.proxy.settings.endpoints import RelaySettings, ResponsesSettings
from desist.proxy.settings.group import Group
from desist.proxy.settings.models import ModelSettings
from desist.proxy.settings.monitor import MonitorSettings
from desist.proxy.settings.serving import LimitSettings, StreamSettings
from desist.proxy.settings.telling import LogSettings, MetricsSettings
from desist.proxy.settings.upstream import UpstreamSettings
from desist.proxy.settings.vllm import VllmSettings

__all__ = ["Settings", "is_loopback"]


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # names files, log lines and labels


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


class Settings(Group):
    """Settings of one proxy process. Frozen; build with `load_settings` or with keyword arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8100, ge=0, le=65535, description="0: any free port")
    engine: Literal["embedded", "upstream", "vllm"] = Field(
        default="embedded", description="what generates: a model in process, any server, vLLM with the plugin"
    )
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
    api_keys: tuple[KeySettings, ...] = Field(
        default=(), description="client keys, each a text or {key, tenant}; empty: no key is asked for"
    )
    api_key_file: Path | None = Field(
        default=None, description="file of client keys, one a line, its tenant after it"
    )
    operator_keys: tuple[SecretStr, ...] = Field(
        default=(), description="keys for what operators may do: switch the mode"
    )
    operator_key_file: Path | None = Field(default=None, description="file of operator keys, one a line")
    allow_public: bool = Field(
        default=False, description="listen on an address that others reach although no key is asked for"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="names by which an open proxy may be called, beside those of loopback"
    )
    mode_file: Path | None = Field(
        default=None, description="kill switch: a file that holds off, shadow or active; followed live"
    )
    reload_s: float = Field(
        default=2.0, ge=0, le=3600, description="how often the settings file is looked at; 0: only at SIGHUP"
    )
    drain_s: float = Field(default=30.0, ge=0, le=3600, description="time for streams to finish at shutdown")
    drain_notice_s: float = Field(
        default=0.0,
        ge=0,
        le=600,
        description="how long /readyz tells of the shutdown before the socket closes",
    )
    upstream: UpstreamSettings | None = None
    vllm: VllmSettings = VllmSettings()
    control: ControlSettings = ControlSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
    relay: RelaySettings = RelaySettings()
    responses: ResponsesSettings = ResponsesSettings()
    openapi: bool = Field(default=True, description="describe the routes at GET /openapi.json")
    monitor: MonitorSettings = MonitorSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    models: dict[str, ModelSettings] = Field(
        default={}, description="by model name: what differs for its requests"
    )
    tenants: dict[str, TenantSettings] = Field(default={}, description="by name: ceilings of some keys")

    _client_keys: tuple[Key, ...] = PrivateAttr(())
    _operator_keys: tuple[Key, ...] = PrivateAttr(())

    @field_validator("api_keys", mode="before")
    @classmethod
    def _plain_keys(cls, value: object) -> object:
        """A key that names no tenant may be written as a text alone."""
        if not isinstance(value, (list, tuple)):
            return value
        return [{"key": each} if isinstance(each, (str, SecretStr)) else each for each in value]

    @field_validator("operator_keys")
    @classmethod
    def _usable_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return tuple(SecretStr(checked_key(key.get_secret_value())) for key in keys)

    @field_validator("tenants")
    @classmethod
    def _plain_names(cls, tenants: dict[str, TenantSettings]) -> dict[str, TenantSettings]:
        for name in tenants:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the tenant's name {name!r} needs 1 to 64 letters, digits, '.', '_' or '-'")
        return tenants

    @model_validator(mode="after")
    def _upstream_named(self) -> Self:
        if self.engine == "upstream" and self.upstream is None:
            raise ValueError("engine is 'upstream' but upstream.url is not set: give --upstream URL")
        return self

    @model_validator(mode="after")
    def _keys_read(self) -> Self:
        self._client_keys = (
            *(Key(each.key.get_secret_value(), each.tenant) for each in self.api_keys),
            *_from_file("api_key_file", self.api_key_file),
        )
        self._operator_keys = (
            *(Key(each.get_secret_value()) for each in self.operator_keys),
            *_from_file("operator_key_file", self.operator_key_file),
        )
        owners: dict[str, str | None] = {}
        for key in self._client_keys:
            if key.tenant is not None and key.tenant not in self.tenants:
                known = ", ".join(self.tenants) or "none is there"
                raise ValueError(f"a client key names the tenant {key.tenant!r}. Known `tenants`: {known}")
            if owners.setdefault(key.secret, key.tenant) != key.tenant:
                raise ValueError(
                    f"one client key belongs to two tenants, {owners[key.secret]} and {key.tenant}. Name one"
                )
        if any(key.secret in owners for key in self._operator_keys):
            raise ValueError("an operator key is a client key too: clients could switch the mode")
        return self

    @model_validator(mode="after")
    def _names_apart(self) -> Self:
        owners = dict.fromkeys(self.models, "a model of its own")
        for name, model in self.models.items():
            for alias in model.aliases:
                if alias in owners:
                    raise ValueError(
                        f"models.{name}.aliases: {alias!r} is {owners[alias]} already. Use another name"
                    )
                owners[alias] = f"an alias of {name!r}"
        return self

    @property
    def client_keys(self) -> tuple[Key, ...]:
        """All client keys, those of `api_key_file` too, as the file was when the settings were made."""
        return self._client_keys

    @property
    def operators(self) -> tuple[Key, ...]:
        """All operator keys, those of `operator_key_file` too."""
        return self._operator_keys

    @property
    def serves_builtin(self) -> bool:
        """Whether the built-in reasoner runs, in a process that this proxy starts itself."""
        own = self.engine == "embedded" or (self.engine == "vllm" and self.upstream is None)
        return own and self.model is None

    def shown(self) -> dict[str, Any]:
        """All values as JSON types, secrets masked."""
        return self.model_dump(mode="json")


def _from_file(name: str, path: Path | None) -> tuple[Key, ...]:
    try:
        return () if path is None else read_key_file(path)
    except ControlError as error:
        raise ValueError(f"{name}: {error}") from error
