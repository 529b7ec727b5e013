"""The outermost layer: opens a request's record, and at its end counts it and writes its log line.

Knows routes, statuses and records. Labels and line hold no path but the listed ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from desist.proxy.lifecycle.disconnect import CANCELLED, DIRECT
from desist.proxy.telemetry.logs import log_access
from desist.proxy.telemetry.metrics import Metrics
from desist.proxy.telemetry.record import RequestRecord

__all__ = ["ObserveMiddleware", "route_of"]

_ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/models",
        "/healthz",
        "/readyz",
        "/metrics",
        "/desist/v1/mode",
    }
)
_BELOW = (
    ("/v1/models/", "/v1/models/{id}"),
    ("/v1/responses/", "/v1/responses/{id}"),
    ("/desist/v1/requests/", "/desist/v1/requests/{id}/stop"),
)


def route_of(path: str) -> str:
    """The route that a path is counted under: one of a fixed list, or "other"."""
    if path in _ROUTES:
        return path
    return next((route for start, route in _BELOW if path.startswith(start)), "other")


class ObserveMiddleware:
    """Counts requests by route and status, their duration and overhead, and logs each."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app, self._metrics, self._clock = app, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["desist.record"] = RequestRecord(self._clock)
        scope[DIRECT] = send
        status, complete = 499, False

        async def noting(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._app(scope, receive, noting)
        finally:
            status = 499 if scope.get(CANCELLED) else status
            self._count(scope, record, status, complete)

    def _count(self, scope: Scope, record: RequestRecord, status: int, complete: bool) -> None:
        route, elapsed = route_of(scope["path"]), self._clock() - record.began
        metrics = self._metrics
        metrics.requests.labels(route, str(status)).inc()
        metrics.duration.labels(route).observe(elapsed)
        if record.overhead_s is not None:
            metrics.overhead.observe(record.overhead_s)
        if record.model:
            ended = len(record.stop_reasons) >= record.choices
            how = "cancelled" if status == 499 else "ok" if ended and status < 400 else "error"
            metrics.generations.labels(metrics.models.label(record.model), record.mode, how).inc()
        if record.first_text_at is not None and complete:
            metrics.paced(self._clock() - record.first_text_at, record.generated)
        log_access(scope, route, status, elapsed, record)
