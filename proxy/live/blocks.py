"""What the settings say of single models (`models`), laid over the server's own.

Knows settings and names. The server's values hold wherever a block says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from desist.proxy.settings import ControlSettings, ModelSettings, Settings, UpstreamSettings

__all__ = ["aliases_of", "canonical", "control_of", "upstream_of"]


def canonical(settings: Settings, model: str) -> str:
    """The name by which a server knows the model that a client calls `model`."""
    if model in settings.models:
        return model
    return next((name for name, block in settings.models.items() if model in block.aliases), model)


def aliases_of(settings: Settings, model: str) -> tuple[str, ...]:
    """Further names that clients may use for a served model."""
    block = settings.models.get(model)
    return () if block is None else block.aliases


def control_of(settings: Settings, model: str) -> ControlSettings:
    """The control of requests for `model` that ask for nothing themselves."""
    block = settings.models.get(model)
    if block is None:
        return settings.control
    given: dict[str, Any] = {
        name: getattr(block.control, name)
        for name in block.control.model_fields_set
        if getattr(block.control, name) is not None or name in ("alpha", "budget")
    }
    if block.mode is not None:
        given["mode"] = block.mode
    return settings.control.model_copy(update=given)


def upstream_of(
    upstream: UpstreamSettings, models: Mapping[str, ModelSettings], model: str
) -> UpstreamSettings:
    """The settings of the server behind as they hold for `model`: its profile and its tags.

    Tags of the server's settings do not outlive another profile: they were meant for the server's own.
    """
    block = models.get(model)
    if block is None:
        return upstream
    given: dict[str, Any] = {}
    if block.profile is not None:
        kept = upstream.model_fields_set - {"think_open", "think_close", "thinking_opened_by_template"}
        upstream = UpstreamSettings.model_validate(
            {name: getattr(upstream, name) for name in kept} | {"profile": block.profile}
        )
    for name, value in (
        ("think_open", block.tags.open),
        ("think_close", block.tags.close),
        ("thinking_opened_by_template", block.tags.opened_by_template),
    ):
        if value is not None:
            given[name] = value
    return upstream.model_copy(update=given) if given else upstream
