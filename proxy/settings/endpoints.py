"""The settings of endpoints beside chat and text completions: what is passed on, what responses are kept.

Knows names, bounds and defaults.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from desist.proxy.relay.paths import DEFAULT_PATHS, PathList
from desist.proxy.settings.group import Group

__all__ = ["RelaySettings", "ResponsesSettings"]


class RelaySettings(Group):
    """Paths beside our own that go to the server behind as they are. All others are refused."""

    paths: tuple[str, ...] = Field(
        default=DEFAULT_PATHS, description="passed on untouched; an end of /* takes in all below"
    )

    @field_validator("paths")
    @classmethod
    def _may_be_passed_on(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        PathList(paths)
        return paths


class ResponsesSettings(Group):
    """What /v1/responses keeps for `previous_response_id`: in memory only, texts included."""

    keep: int = Field(
        default=256, ge=0, le=1_000_000, description="responses kept, the oldest go first; 0: none"
    )
    keep_bytes: int = Field(default=64 * 2**20, ge=0, description="size of all kept responses together")
    keep_s: float = Field(default=3600.0, gt=0, le=2_592_000, description="how long one is kept")
