"""The OpenAI-compatible proxy: `create_app(settings, engine=...)`. Imports no torch."""

from desist.proxy.app import create_app
from desist.proxy.settings import Settings, SettingsError, load_settings

__all__ = ["Settings", "SettingsError", "create_app", "load_settings"]
