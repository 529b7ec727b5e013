"""The plugin's configuration: the object `desist` in vLLM's `--additional-config`.

It stands there so that the taps enter the key of vLLM's compile cache. Knows names and ranges; loads
nothing but the taps of the probes' cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from desist.controller import ModelProfile, get_profile
from desist.data.errors import ControlError

__all__ = ["PARSER", "PROCESSOR", "SECTION", "TESTED", "PluginConfig", "config_of", "offset_endpoint"]

SECTION = "desist"
#: The class for vLLM's --logits-processors.
PROCESSOR = "desist.proxy.engines.vllm.processor:DesistProcessor"
#: Before a profile's name: the reasoning parser that the plugin offers vLLM's --reasoning-parser.
PARSER = "desist-"
#: vLLM releases that the tests run on.
TESTED = ("0.32.0",)


class PluginConfig(BaseModel):
    """What the plugin does in one engine. Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str = Field(description="model profile: tags, cues, hand-off")
    probe: Path | None = Field(default=None, description="artefact of a boundary probe (or a streaming one)")
    rom: Path | None = Field(default=None, description="artefact of a streaming probe")
    certificates: tuple[Path, ...] = Field(default=(), description="for requests that name an alpha")
    decide: Literal["engine", "proxy"] = Field(
        default="engine", description="where scores are computed and compared: in the engine or the proxy"
    )
    stream: Literal["float32", "bfloat16"] | None = Field(
        default=None, description="send the hidden state at each boundary, in this type"
    )
    taps: tuple[int, ...] = Field(default=(), description="layers to stream; none: those of the probes")
    token_tap: int | None = Field(
        default=None, description="keep this layer for every reasoning token and send it at the end"
    )
    events: str | None = Field(default="tcp://127.0.0.1:8111", description="where events are published")
    commands: str | None = Field(default="tcp://127.0.0.1:8131", description="where commands are taken")
    queue: int = Field(default=100_000, ge=1, description="events that may wait for the network")
    kernels: Literal["auto", "torch", "triton"] = Field(
        default="auto",
        description="what scores boundaries, and on the V2 runner decides; auto: Triton on a GPU, else torch",
    )
    min_answer_tokens: int = Field(default=256, ge=1, description="tokens kept for the answer")
    force: bool = Field(default=False, description="load artefacts of other fingerprints, as uncertified")

    @field_validator("profile")
    @classmethod
    def _known(cls, name: str) -> str:
        get_profile(name)
        return name

    @property
    def model_profile(self) -> ModelProfile:
        return get_profile(self.profile)

    def wanted_taps(self) -> tuple[int, ...]:
        """All layers that are read, as configured (negative ones count from the end), each once.

        Raises `ControlError` where a probe's card cannot be read.
        """
        found = list(self.taps)
        for folder in (self.probe, self.rom):
            if folder is not None:
                found += _card_taps(folder)
        if self.token_tap is not None:
            found.append(self.token_tap)
        return tuple(dict.fromkeys(found))

    def as_additional(self) -> dict[str, Any]:
        """The value of `--additional-config`, as JSON types; the taps are spelt out for the compile cache."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return {SECTION: values | {"profile": self.profile}}


def config_of(additional: object) -> PluginConfig | None:
    """The configuration in an `additional_config`, or None where vLLM runs without desist.

    Raises `ControlError` naming each bad key.
    """
    if not isinstance(additional, Mapping) or additional.get(SECTION) is None:
        return None
    given = additional[SECTION]
    if not isinstance(given, Mapping):
        raise ControlError(f"--additional-config: '{SECTION}' is {given!r}; give an object of settings.")
    given = {key: value for key, value in given.items() if key != "tap_layers"}  # written by the plugin
    try:
        return PluginConfig.model_validate(given)
    except ValidationError as error:
        lines = "; ".join(
            f"'{SECTION}.{'.'.join(map(str, each['loc']))}' is {each['input']!r}: "
            f"{each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_url=False, include_context=False)
        )
        known = ", ".join(PluginConfig.model_fields)
        raise ControlError(f"--additional-config: {lines}. Known keys: {known}") from error


def offset_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank: a TCP port is raised by the rank, other addresses get a suffix.

    The rule of vLLM's KV events, so that one firewall rule fits both.
    """
    if rank == 0:
        return endpoint
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.rpartition(":")
        return endpoint if port == "0" else f"{host}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


def _card_taps(folder: Path) -> tuple[int, ...]:
    try:
        return tuple(json.loads((folder / "card.json").read_text(encoding="utf-8"))["taps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(f"{folder} holds no probe card ({error}). Give the folder of a probe.") from error
