"""The settings of the OpenAI-compatible server behind the proxy.

Knows names, bounds and defaults. Knows nothing of engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator

from desist.data.errors import ControlError
from desist.proxy.access.keys import checked_key, read_secret_file
from desist.proxy.settings.group import Group, Seconds

__all__ = ["UpstreamSettings"]


class UpstreamSettings(Group):
    """The OpenAI-compatible server behind the proxy."""

    url: str = Field(description="for example http://127.0.0.1:8000/v1")
    api_key: SecretStr | None = Field(
        default=None, description="sent upstream in place of the client's Authorization"
    )
    api_key_file: Path | None = Field(default=None, description="file that holds `api_key`")
    forward_authorization: bool | None = Field(
        default=None,
        description="hand the client's Authorization on; none: only where no key is asked for here",
    )
    think_open: str = Field(
        default="<think>", min_length=1, description="opens thinking; left out: as the profile has it"
    )
    think_close: str = Field(
        default="</think>", min_length=1, description="closes thinking; left out: as the profile has it"
    )
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
    self_test: bool = Field(
        default=True, description="try with tiny requests what the server can do, in the background"
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="times that a failed call is made again, never after its first byte",
    )
    connect_s: Seconds = Field(default=10.0, description="to connect")
    first_byte_s: Seconds = Field(default=600.0, description="until an answer begins")
    idle_s: Seconds = Field(default=300.0, description="between two parts of an answer")
    total_s: Seconds = Field(
        default=3600.0, description="a whole request, all of its calls; limits.total_s holds where smaller"
    )
    max_connections: int = Field(default=1024, ge=1, description="connections at once")

    _key: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("both api_key and api_key_file are given. Leave one out")
        if self.forward_authorization and (self.api_key or self.api_key_file):
            raise ValueError("forward_authorization is true and a key of our own is given. Leave one out")
        try:
            if self.api_key is not None:
                self._key = checked_key(self.api_key.get_secret_value())
            elif self.api_key_file is not None:
                self._key = read_secret_file(self.api_key_file)
        except (ControlError, ValueError) as error:
            raise ValueError(f"api_key: {error}") from error
        return self

    @property
    def key(self) -> str | None:
        """The key that is sent upstream, wherever it was written."""
        return self._key

    @field_validator("url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        url = value.strip().rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address such as http://127.0.0.1:8000/v1")
        return url if url.endswith("/v1") else url + "/v1"
