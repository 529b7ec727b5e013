"""What one running app holds: settings, engine, resolver, metrics, clock and ids.

Knows how routes reach it. Holds no logic.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import Request

from desist.data.schema import Sampling
from desist.proxy.control import ControlResolver
from desist.proxy.engines.base import Engine
from desist.proxy.metrics import Metrics
from desist.proxy.settings import Settings

if TYPE_CHECKING:
    from desist.proxy.audits import AuditDesk
    from desist.proxy.watch import Watch

__all__ = ["ProxyState", "new_id", "state_of"]


def new_id() -> str:
    """A fresh id for requests and responses: 24 hex digits."""
    return secrets.token_hex(12)


@dataclass(slots=True)
class ProxyState:
    """One per app. `sampling` is the default of requests that do not say.

    `details`: what /readyz tells beside readiness, by name; None: nothing to tell. `watch` and `audits`: what
    watches certificates in service, from the start of the app on.
    At start `resolver` gets its certificates, and `sampling` and `started_at` (Unix seconds) their values.
    """

    settings: Settings
    engine: Engine
    resolver: ControlResolver
    sampling: Sampling = field(default_factory=Sampling)
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = new_id
    started: bool = False
    in_flight: int = 0
    started_at: int = 0
    details: dict[str, Callable[[], Any]] = field(default_factory=dict)
    watch: Watch | None = None
    audits: AuditDesk | None = None

    @property
    def passes_through(self) -> bool:
        """Whether the engine hands requests on, so that its server judges what the proxy does not know."""
        return bool(getattr(self.engine, "passes_through", False))


def state_of(request: Request) -> ProxyState:
    """The state of the app that serves `request`."""
    state = request.app.state.desist
    assert isinstance(state, ProxyState)
    return state
