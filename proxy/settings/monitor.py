"""The settings of what watches a certificate in service: drift, audits, what an alarm does.

Knows names, bounds and defaults; `settings` puts them into the whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from desist.proxy.settings.group import Group

__all__ = ["MonitorSettings"]


class MonitorSettings(Group):
    """Watching certificates in service."""

    state: Path | None = Field(
        default=None, description="folder that keeps drift state and audit verdicts; none: memory only"
    )
    on_alarm: Literal["shadow", "tell"] = Field(
        default="shadow",
        description="shadow: stop nothing under that certificate any more; tell: only say so",
    )
    drift: bool = Field(default=True, description="watch each certificate that has a .drift file beside it")
    alarm_every: float = Field(
        default=100_000, gt=1, description="mean traces between false drift alarms, at least"
    )
    gap: int = Field(
        default=200, ge=0, le=100_000, description="traces between two of one user; 0: all count"
    )
    audit_rate: float = Field(
        default=0.0, ge=0, le=1, description="share of requests that also run on beside their stop"
    )
    audit_backlog: int = Field(
        default=64, ge=1, description="copies running on beyond which no new audit is begun"
    )
    audit_alarm_every: float = Field(
        default=1000, gt=1, description="mean audits between false alarms of risk above alpha, at least"
    )
