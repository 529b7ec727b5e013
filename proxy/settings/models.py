"""The settings of single models: what differs from the server's own for requests to one of them.

Knows names, bounds and defaults; `desist.proxy.live.blocks` lays a block over the server's settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from desist.proxy.settings.access import alpha_text
from desist.proxy.settings.group import Budget, Group

__all__ = ["ModelControlSettings", "ModelSettings", "TagSettings"]


class TagSettings(Group):
    """What opens and closes thinking in a model's text; none: as its profile has it."""

    open: str | None = Field(default=None, min_length=1, description="opens thinking")
    close: str | None = Field(default=None, min_length=1, description="closes thinking")
    opened_by_template: bool | None = Field(
        default=None, description="the chat template opens the thinking block itself"
    )


class ModelControlSettings(Group):
    """As `control`, for one model; what is left out is the server's."""

    alpha: str | None = Field(default=None, description="tolerated risk")
    budget: Budget | None = Field(default=None, description="hard limit on reasoning tokens")
    answer: Literal["write", "extract"] | None = Field(default=None, description="what a stop does")
    min_answer_tokens: int | None = Field(default=None, ge=1, description="tokens kept for the answer")
    efforts: dict[str, Budget | None] | None = Field(
        default=None, description="reasoning_effort names and their budgets; replaces the server's map"
    )

    _alpha = field_validator("alpha", mode="before")(alpha_text)


class ModelSettings(Group):
    """One served model, under the name that its server knows it by."""

    profile: str | None = Field(default=None, description="model profile: tags, cues and hand-off")
    tags: TagSettings = Field(default=TagSettings(), description="tags that differ from the profile's")
    mode: Literal["off", "shadow", "active"] | None = Field(
        default=None, description="mode of requests that name none"
    )
    control: ModelControlSettings = ModelControlSettings()
    certificates: tuple[Path, ...] | None = Field(
        default=None, description="certificates of this model, the default one first; none: the server's"
    )
    aliases: tuple[str, ...] = Field(default=(), description="further names that clients may use for it")
