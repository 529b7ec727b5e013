"""What one running app holds: settings, engine, resolver, metrics, clock and ids.

Knows how routes reach it. Holds no logic.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request

from desist.data.schema import Sampling
from desist.proxy.access.middleware import Access
from desist.proxy.control import ControlResolver, OperatingPoint
from desist.proxy.engines.base import Engine
from desist.proxy.lifecycle.admission import Admission
from desist.proxy.lifecycle.running import Running
from desist.proxy.live.blocks import control_of
from desist.proxy.live.switch import ModeSwitch
from desist.proxy.relay.connection import Relay
from desist.proxy.responses.store import KeptHere, Responses, ResponseStore
from desist.proxy.settings import ControlSettings, Settings
from desist.proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from desist.proxy.lifecycle.shared_places import SharedPlaces
    from desist.proxy.lifecycle.team import Team
    from desist.proxy.monitor.audits import AuditDesk
    from desist.proxy.monitor.watch import Watch

__all__ = ["ProxyState", "new_id", "state_of", "state_of_app"]


def new_id() -> str:
    """A fresh id for requests and responses: 24 hex digits."""
    return secrets.token_hex(12)


@dataclass(slots=True)
class ProxyState:
    """One per app. `sampling` is the default of requests that do not say.

    `details`: what /readyz tells beside readiness, by name; None: nothing to tell. `watch` and `audits`: what
    watches certificates in service, from the start of the app on.
    `block_points`: the operating points of models with certificates of their own. `places` and `team`: what
    several workers have in common (None: this is the only one).
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
    started_at: int = 0
    metrics_port: int | None = None
    details: dict[str, Callable[[], Any]] = field(default_factory=dict)
    watch: Watch | None = None
    audits: AuditDesk | None = None
    relay: Relay = field(default_factory=Relay)
    running: Running = field(default_factory=Running)
    responses: Responses = field(init=False)
    block_points: Mapping[str, tuple[OperatingPoint, ...]] = field(default_factory=dict)
    places: SharedPlaces | None = None
    team: Team | None = None
    admission: Admission = field(init=False)
    access: Access = field(init=False)
    switch: ModeSwitch = field(init=False)

    def __post_init__(self) -> None:
        kept = self.settings.responses
        self.responses = KeptHere(ResponseStore(kept.keep, kept.keep_bytes, kept.keep_s))
        self.access = Access(self.settings)
        self.switch = ModeSwitch(self.engine, self.metrics, self.settings.mode_file)
        limits = self.settings.limits
        self.admission = Admission(
            limits.max_in_flight, limits.max_queue, limits.queue_s, self.metrics.tell_admission, self.places
        )

    def control_for(self, model: str) -> tuple[ControlResolver, ControlSettings]:
        """What resolves requests for `model`, and the settings for those that ask for nothing themselves."""
        resolver = self.resolver
        if (points := self.block_points.get(model)) is not None:
            resolver = replace(resolver, points=points, former=None)
        return resolver, control_of(self.settings, model)

    @property
    def forwards_authorization(self) -> bool:
        """Whether a client's own Authorization goes on to the server behind."""
        upstream = self.settings.upstream
        if upstream is not None and upstream.forward_authorization is not None:
            return upstream.forward_authorization
        return not self.access.asks_for_keys

    @property
    def passes_through(self) -> bool:
        """Whether the engine hands requests on, so that its server judges what the proxy does not know."""
        return bool(getattr(self.engine, "passes_through", False))


def state_of(request: Request) -> ProxyState:
    """The state of the app that serves `request`."""
    return state_of_app(request.app)


def state_of_app(app: FastAPI) -> ProxyState:
    """The state of an app that `create_app` made."""
    state = app.state.desist
    assert isinstance(state, ProxyState)
    return state
