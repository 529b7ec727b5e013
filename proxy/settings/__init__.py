"""All settings of the proxy, one module a subject: `whole` puts them together, `loading` finds their values.

Precedence: flags > environment (`DESIST_`, nested by `__`) > file (YAML or TOML) > default.
"""

from __future__ import annotations

from desist.proxy.settings.access import KeySettings, TenantSettings
from desist.proxy.settings.control import ControlSettings, SamplingSettings
from desist.proxy.settings.endpoints import RelaySettings, ResponsesSettings
from desist.proxy.settings.explaining import SettingsError
from desist.proxy.settings.loading import Loaded, Source, load_settings, load_with_origins
from desist.proxy.settings.models import ModelControlSettings, ModelSettings, TagSettings
from desist.proxy.settings.monitor import MonitorSettings
from desist.proxy.settings.serving import LimitSettings, StreamSettings
from desist.proxy.settings.telling import LogSettings, MetricsSettings
from desist.proxy.settings.upstream import UpstreamSettings
from desist.proxy.settings.vllm import VllmSettings
from desist.proxy.settings.whole import Settings, is_loopback

__all__ = [
    "ControlSettings",
    "KeySettings",
    "LimitSettings",
    "Loaded",
    "LogSettings",
    "MetricsSettings",
    "ModelControlSettings",
    "ModelSettings",
    "MonitorSettings",
    "RelaySettings",
    "ResponsesSettings",
    "SamplingSettings",
    "Settings",
    "SettingsError",
    "Source",
    "StreamSettings",
    "TagSettings",
    "TenantSettings",
    "UpstreamSettings",
    "VllmSettings",
    "is_loopback",
    "load_settings",
    "load_with_origins",
]
