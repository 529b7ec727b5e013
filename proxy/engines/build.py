"""Builds the engine that the settings name. Imports an engine's module only when it is asked for."""

from __future__ import annotations

from desist.data.errors import EngineError
from desist.proxy.engines.base import Engine
from desist.proxy.settings import Settings

__all__ = ["build_engine"]


def build_engine(settings: Settings) -> Engine:
    """The engine of `settings`, not started.

    Raises `EngineError` where the packages that it needs are missing.
    """
    if settings.engine == "upstream":
        from desist.proxy.engines.upstream.engine import UpstreamEngine

        assert settings.upstream is not None  # Settings refuses this engine without an address
        return UpstreamEngine(
            settings.upstream,
            min_answer_tokens=settings.control.min_answer_tokens,
            loops=settings.control.loops,
            models=settings.models,
        )
    if settings.engine == "vllm":
        from desist.proxy.engines.vllm.beside.engine import VllmEngine

        return VllmEngine(settings)
    try:
        from desist.proxy.engines.embedded import EmbeddedEngine
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the embedded engine needs the package '{error.name}', which is not installed. Install "
            "desist[local], or serve with --upstream URL."
        ) from error
    return EmbeddedEngine.from_settings(settings)
