"""Prometheus metrics of one app, in a registry of its own. Counts only: never texts, ids or keys.

Labels are bounded: route, status, stop reason, mode, channel. Does not know how requests are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from desist.controller.core import StopReason
from desist.proxy.control import Resolved
from desist.proxy.engines.base import Finished
from desist.proxy.usage import saved_estimate

__all__ = ["Metrics", "MetricsMiddleware"]

_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/readyz", "/metrics")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """All instruments. One instance per app, so that two apps in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reg = self.registry
        self.requests = Counter(
            "desist_requests", "Requests by route and status.", ["route", "status"], registry=reg
        )
        self.in_flight = Gauge("desist_requests_in_flight", "Generation requests now served.", registry=reg)
        self.duration = Histogram(
            "desist_request_duration_seconds", "Whole requests.", ["route"], buckets=_SECONDS, registry=reg
        )
        self.first_token = Histogram(
            "desist_time_to_first_token_seconds",
            "Time to the first text, by channel (reasoning, content).",
            ["channel"],
            buckets=_SECONDS,
            registry=reg,
        )
        self.stops = Counter(
            "desist_stops",
            "Choices by how their thinking ended; certified only where a certificate covers the stop.",
            ["reason", "mode", "certified"],
            registry=reg,
        )
        self.shadow_stops = Counter(
            "desist_shadow_stops", "Stops that shadow mode would have made.", ["reason"], registry=reg
        )
        self.budget_unreached = Counter(
            "desist_budget_unreached", "Choices with a budget that thinking did not reach.", registry=reg
        )
        self.uncontrolled = Counter(
            "desist_uncontrolled", "Choices passed through unstopped although control was on.", registry=reg
        )
        self.tokens = Counter("desist_tokens", "Tokens by kind, as generated.", ["kind"], registry=reg)
        self.reasoning = Histogram(
            "desist_reasoning_tokens", "Reasoning tokens of a choice.", buckets=_TOKENS, registry=reg
        )
        self.saved = Counter(
            "desist_saved_tokens_estimate",
            "Estimated tokens saved, net, where positive (the rest was never run).",
            registry=reg,
        )
        self.disconnects = Counter("desist_client_disconnects", "Clients that left early.", registry=reg)
        self.drift_evidence = Gauge(
            "desist_drift_log_evidence",
            "Log of the drift evidence; alarm at log of monitor.alarm_every.",
            ["certificate"],
            registry=reg,
        )
        self.drift_left_out = Counter(
            "desist_drift_left_out", "Choices that the drift detector does not take.", ["why"], registry=reg
        )
        self.alarm = Gauge(
            "desist_certificate_alarm", "1: traces have drifted, or audits lose too much.", ["certificate"],
            registry=reg,
        )  # fmt: skip
        self.audits = Counter("desist_audits", "Audits by verdict.", ["verdict"], registry=reg)
        self.audit_tokens = Counter(
            "desist_audit_tokens", "Tokens generated for audits alone, in no client's usage.", registry=reg
        )
        self.engine_errors = Counter("desist_engine_errors", "Generations that failed.", registry=reg)

    def count(self, finished: Finished, resolved: Resolved) -> None:
        """Take the counts of one finished choice."""
        usage, control, decision = finished.usage, resolved.control, finished.decision
        certified = "true" if decision and decision.certified else "false"
        self.stops.labels(str(finished.stop_reason), control.mode, certified).inc()
        if finished.shadow is not None:
            self.shadow_stops.labels(str(finished.shadow.reason)).inc()
        if control.budget is not None and finished.stop_reason is not StopReason.BUDGET:
            self.budget_unreached.inc()
        if finished.uncontrolled or resolved.uncontrolled:
            self.uncontrolled.inc()
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("reasoning", usage.reasoning_tokens),
            ("answer", usage.answer_tokens),
            ("forced", usage.handoff_tokens),
            ("rewound", usage.rewound_tokens),
        ):
            self.tokens.labels(kind).inc(max(0, count))
        self.reasoning.observe(usage.reasoning_tokens)
        self.saved.inc(max(0, saved_estimate(finished, resolved) or 0))

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Counts requests by route and status, and their duration."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app, self._metrics, self._clock = app, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        route = path if path in _ROUTES else "/v1/models/{id}" if path.startswith("/v1/models/") else "other"
        started, status = self._clock(), 499

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.duration.labels(route).observe(self._clock() - started)
