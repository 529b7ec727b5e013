"""The OpenAI-compatible proxy: `create_app(settings, engine=...)`. Imports no torch.

The names are loaded when they are asked for: the plugin inside vLLM imports modules below this package and
must not pay for an HTTP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from desist.proxy.app import create_app
    from desist.proxy.settings import Settings, SettingsError, load_settings

__all__ = ["Settings", "SettingsError", "create_app", "load_settings"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from desist.proxy.app import create_app

        return create_app
    if name in __all__:
        from desist.proxy import settings

        return getattr(settings, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
