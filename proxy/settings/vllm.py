"""The settings of vLLM with the plugin: one that is started as a child, or your own (`upstream.url`).

Knows names, bounds and defaults. Knows nothing of engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from desist.proxy.settings.group import Group, Seconds

__all__ = ["VllmSettings"]

# What desist writes into the command line of the vLLM that it starts; given twice, the last one would win.
_OWN_ARGS = (
    "--model",
    "--host",
    "--port",
    "--api-key",
    "--additional-config",
    "--logits-processors",
    "--data-parallel-size",
    "-dp",
    "--api-server-count",
)


class VllmSettings(Group):
    """vLLM with the plugin: one that is started as a child, or your own (`upstream.url`)."""

    profile: str | None = Field(
        default=None, description="model profile; none: the built-in reasoner's, or qwen3"
    )
    decide: Literal["engine", "proxy"] | None = Field(
        default=None,
        description="where scores are computed and compared; none: engine, or as your own server does it",
    )
    stream: Literal["float32", "bfloat16"] | None = Field(
        default=None, description="send the hidden state at each boundary to the proxy, in this type"
    )
    rom: Path | None = Field(default=None, description="streaming probe beside `probe` (decide: engine)")
    candidate: Path | None = Field(
        default=None, description="a probe that scores in the proxy, beside the one that decides"
    )
    events: str | None = Field(
        default=None,
        description="where the plugin publishes; none: a private socket, or tcp://127.0.0.1:8111 of your own",
    )
    commands: str | None = Field(
        default=None,
        description="where the plugin takes commands; none: a private socket, or tcp://127.0.0.1:8131",
    )
    ranks: int = Field(default=1, ge=1, le=1024, description="data-parallel ranks, each with endpoints")
    port: int = Field(default=0, ge=0, le=65535, description="HTTP port of the child; 0: any free port")
    args: tuple[str, ...] = Field(default=(), description="further arguments for the child's command line")
    log: bool = Field(default=True, description="show the child's log on stderr")
    start_s: Seconds = Field(default=1800.0, description="time for the child to load the model")
    hello_s: Seconds = Field(default=15.0, description="time for the plugin of a running server to answer")
    join_s: float = Field(
        default=2.0, gt=0, le=60, description="time to wait for a request's last event after its last token"
    )
    stop_s: Seconds = Field(default=20.0, description="time for the child to end before it is killed")
    waiting: int = Field(
        default=4096, ge=1, description="boundaries that may wait for the proxy's probe (decide: proxy)"
    )

    @field_validator("args")
    @classmethod
    def _not_ours(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for arg in args:
            name = arg.partition("=")[0]
            if name in _OWN_ARGS:
                raise ValueError(f"must not hold {name}, which desist writes itself. See docs/vllm.md")
        return args

    @model_validator(mode="after")
    def _streams_where_needed(self) -> Self:
        if self.decide == "proxy" and self.rom is not None:
            raise ValueError(
                "vllm.rom reads every token, decide: proxy sends boundaries only. Set vllm.decide to engine"
            )
        return self
