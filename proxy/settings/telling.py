"""The settings of what the proxy tells its operator: logs and metrics.

Knows names, bounds and defaults; `desist.proxy.telemetry.logs` and `metrics` use them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from desist.proxy.settings.group import Group

__all__ = ["LogSettings", "MetricsSettings"]


class LogSettings(Group):
    """Log lines on stderr. They never hold prompts, thinking, answers or keys."""

    format: Literal["text", "json"] = Field(default="text", description="json: one object a line")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="lowest level that is written"
    )
    access: bool = Field(default=True, description="one line a request, whatever the level")


class MetricsSettings(Group):
    """Where Prometheus reads, beside /metrics on the proxy's own port."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address of the separate port")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="a port for metrics alone; 0: any free one"
    )
