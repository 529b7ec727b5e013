"""The settings of how requests are taken in and streams are written.

Knows names, bounds and defaults.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from desist.proxy.settings.group import Group, Seconds

__all__ = ["LimitSettings", "StreamSettings"]


class LimitSettings(Group):
    """What one client may ask."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=1024, description="largest request body")
    max_choices: int = Field(default=16, ge=1, description="n, and n times the number of prompts")
    max_in_flight: int = Field(
        default=512, ge=1, description="requests served at once, by all workers; more wait"
    )
    max_queue: int = Field(
        default=512, ge=0, description="requests that may wait for a place; more are answered 429"
    )
    queue_s: Seconds = Field(default=30.0, description="longest wait for a place; then 503")
    total_s: Seconds = Field(
        default=3600.0,
        description="a request from acceptance to its last byte; x-desist-timeout asks for less",
    )


class StreamSettings(Group):
    """How streams are written."""

    heartbeat_s: float = Field(
        default=15.0, ge=0, le=300, description="comment line in silent streams; 0 = never"
    )
    reasoning_field: Literal["both", "reasoning", "reasoning_content"] = Field(
        default="both", description="message field(s) that carry the thinking; always the same text"
    )
    reasoning_format: Literal["field", "inline", "none"] = Field(
        default="field", description="thinking in field(s), in the content between <think> tags, or left out"
    )
    desist_object: bool = Field(default=True, description="add the `desist` object to responses")
