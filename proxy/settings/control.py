"""The settings of what is done with a request that asks for nothing itself: control and sampling.

Knows names, bounds and defaults; `desist.proxy.control` resolves requests by them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from desist.proxy.settings.access import alpha_text
from desist.proxy.settings.group import Budget, Group

__all__ = ["ControlSettings", "SamplingSettings"]


class ControlSettings(Group):
    """What is done with a request that asks for nothing itself."""

    mode: Literal["off", "shadow", "active"] = Field(
        default="active", description="off, shadow (score only), active"
    )
    alpha: str | None = Field(default=None, description="tolerated risk; none: the first certificate listed")
    budget: Budget | None = Field(default=None, description="hard limit on reasoning tokens")
    answer: Literal["write", "extract"] = Field(default="write", description="what a stop does")
    min_answer_tokens: int = Field(default=256, ge=1, description="tokens kept for the answer")
    loops: bool = Field(
        default=True, description="close thinking that goes round (upstream engine, mode active)"
    )
    efforts: dict[str, Budget | None] = Field(
        default={
            "none": 0,
            "minimal": 128,
            "low": 1024,
            "medium": 4096,
            "high": None,
            "xhigh": None,
            "max": None,
        },
        description="reasoning_effort names and their budgets in reasoning tokens; empty: effort is ignored",
    )
    forward_efforts: dict[str, str | None] = Field(
        default={}, description="what the server behind calls an effort; null: not sent; others as they are"
    )

    _alpha = field_validator("alpha", mode="before")(alpha_text)


class SamplingSettings(Group):
    """Sampling of an embedded engine for requests that do not say; none: the model's own default.

    Upstream servers use their own.
    """

    temperature: float | None = Field(default=None, ge=0, le=2, description="of requests that name none")
    top_p: float | None = Field(default=None, gt=0, le=1, description="of requests that name none")
    max_tokens: int | None = Field(default=None, ge=1, description="of requests that name none")
