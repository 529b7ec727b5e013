"""Prometheus metrics of one app, in a registry of its own. Counts only: never texts, ids or keys.

Labels are bounded: route, status, model (served names, else "other"), stop reason, mode, channel, and words
listed in `metric_words`. Does not know how requests are served. With several workers, each writes its counts
into the folder PROMETHEUS_MULTIPROC_DIR (prometheus_client's own way), and any of them tells the sum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from desist._version import __version__
from desist.controller.core import Mode, StopReason
from desist.proxy.answering.usage import saved_estimate
from desist.proxy.control import Resolved
from desist.proxy.engines.base import Finished
from desist.proxy.telemetry.metric_words import ModelLabels, why_of

__all__ = ["Instrument", "Metrics", "multiprocess_folder"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1)
_OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_SCORES = (*(round(0.05 * step, 2) for step in range(1, 20)), 0.98, 0.99)
_CAPS: dict[Mode, int] = {"off": 0, "shadow": 1, "active": 2}


@dataclass(frozen=True, slots=True)
class Instrument:
    """One instrument as docs/metrics.md tells of it. `otel`: the OpenTelemetry name nearest to it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    says: str
    otel: str = ""


class Metrics:
    """All instruments. One instance per app, so that two apps in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instruments: list[Instrument] = []
        self.models = ModelLabels()
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.info = gauge("desist_info", "Always 1; the version of desist.", ["version"], merge="max")
        self.info.labels(__version__).set(1)

        self.requests = counter("desist_requests", "HTTP requests by route and status.", ["route", "status"])
        self.generations = counter(
            "desist_generations",
            "Generation requests by the mode they ran in and how they ended (ok, error, cancelled).",
            ["model", "mode", "status"],
        )
        self.in_flight = gauge("desist_requests_in_flight", "Generation requests now served.")
        self.queued = gauge("desist_requests_queued", "Generation requests that wait for a place.")
        self.refused = counter("desist_requests_refused", "Requests that got no place, by code.", ["code"])
        self.duration = histogram(
            "desist_request_duration_seconds", "Whole requests.", _SECONDS, ["route"],
            otel="gen_ai.server.request.duration",
        )  # fmt: skip
        self.overhead = histogram(
            "desist_overhead_seconds",
            "What a request costs in the proxy before its generation begins: reading, checking, control.",
            _OVERHEAD,
        )
        self.first_token = histogram(
            "desist_time_to_first_token_seconds",
            "Time to the first text, by channel (reasoning, content).",
            _SECONDS,
            ["channel"],
            otel="gen_ai.server.time_to_first_token",
        )
        self.per_token = histogram(
            "desist_time_per_output_token_seconds",
            "Mean time between two tokens of a request after its first.",
            _PER_TOKEN,
            otel="gen_ai.server.time_per_output_token",
        )
        self.disconnects = counter("desist_client_disconnects", "Clients that left early.")
        self.engine_errors = counter("desist_engine_errors", "Generations that failed.")

        self.stops = counter(
            "desist_stops",
            "Choices by how their thinking ended; certified only where a certificate covers the stop.",
            ["reason", "mode", "certified"],
        )
        self.shadow_stops = counter(
            "desist_shadow_stops", "Stops that shadow mode would have made.", ["reason"]
        )
        self.budget_unreached = counter(
            "desist_budget_unreached",
            "Choices with a budget that thinking did not reach; it cut those of desist_stops, reason budget.",
        )
        self.uncontrolled = counter(
            "desist_uncontrolled",
            "Choices passed through unstopped although control was on.",
            ["why"],
        )
        self.scores = histogram(
            "desist_boundary_score", "Scores at boundaries, by scorer; higher is safer to stop.", _SCORES,
            ["scorer"],
        )  # fmt: skip
        self.tokens = counter(
            "desist_tokens", "Tokens by kind, as generated.", ["kind"], otel="gen_ai.client.token.usage"
        )
        self.reasoning = histogram(
            "desist_reasoning_tokens",
            "Reasoning tokens of a choice.",
            _TOKENS,
            otel="gen_ai.client.inference.usage.reasoning.output_tokens",
        )
        self.answers = histogram("desist_answer_tokens", "Answer tokens of a choice.", _TOKENS)
        self.saved = counter(
            "desist_saved_tokens_estimate",
            "Estimated tokens saved, net, where positive (the rest was never run).",
        )

        self.drift_evidence = gauge(
            "desist_drift_log_evidence",
            "Log of the drift evidence; alarm at log of monitor.alarm_every.",
            ["certificate"],
            merge="max",
        )
        self.drift_left_out = counter(
            "desist_drift_left_out", "Choices that the drift detector does not take.", ["why"]
        )
        self.alarm = gauge(
            "desist_certificate_alarm", "1: traces have drifted, or audits lose too much.", ["certificate"],
            merge="max",
        )  # fmt: skip
        self.audits = counter("desist_audits", "Audits by verdict.", ["verdict"])
        self.audit_tokens = counter(
            "desist_audit_tokens", "Tokens generated for audits alone, in no client's usage."
        )

        self.mode_cap = gauge(
            "desist_mode_cap", "Where the kill switch stands: 0 off, 1 shadow, 2 active (nothing held back).",
            merge="livemin",
        )  # fmt: skip
        self.mode_cap.set(_CAPS["active"])
        self.reloads = counter("desist_config_reloads", "Settings, keys, probes or certificates taken over.")
        self.reload_failures = counter(
            "desist_config_reload_failures", "New settings or artefacts refused; the old ones stay in use."
        )

    def _counter(self, name: str, says: str, labels: Sequence[str] = (), *, otel: str = "") -> Counter:
        self.instruments.append(Instrument(f"{name}_total", "counter", tuple(labels), says, otel))
        return Counter(name, says, labels, registry=self.registry)

    def _gauge(
        self,
        name: str,
        says: str,
        labels: Sequence[str] = (),
        *,
        merge: Literal["livesum", "livemin", "max"] = "livesum",
    ) -> Gauge:
        """`merge`: what becomes of the values of several workers."""
        self.instruments.append(Instrument(name, "gauge", tuple(labels), says))
        return Gauge(name, says, labels, registry=self.registry, multiprocess_mode=merge)

    def _histogram(
        self, name: str, says: str, buckets: Sequence[float], labels: Sequence[str] = (), *, otel: str = ""
    ) -> Histogram:
        self.instruments.append(Instrument(name, "histogram", tuple(labels), says, otel))
        return Histogram(name, says, labels, buckets=tuple(buckets), registry=self.registry)

    def count(self, finished: Finished, resolved: Resolved) -> None:
        """Take the counts of one finished choice."""
        usage, control, decision = finished.usage, resolved.control, finished.decision
        certified = "true" if decision and decision.certified else "false"
        self.stops.labels(str(finished.stop_reason), control.mode, certified).inc()
        if finished.shadow is not None:
            self.shadow_stops.labels(str(finished.shadow.reason)).inc()
        if control.budget is not None and finished.stop_reason is not StopReason.BUDGET:
            self.budget_unreached.inc()
        if why := finished.uncontrolled or resolved.uncontrolled:
            self.uncontrolled.labels(why_of(why)).inc()
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("reasoning", usage.reasoning_tokens),
            ("answer", usage.answer_tokens),
            ("forced", usage.handoff_tokens),
            ("rewound", usage.rewound_tokens),
        ):
            self.tokens.labels(kind).inc(max(0, count))
        self.reasoning.observe(usage.reasoning_tokens)
        self.answers.observe(usage.answer_tokens)
        self.saved.inc(max(0, saved_estimate(finished, resolved) or 0))
        for scorer in {name for boundary in finished.boundaries for name in boundary.scores}:
            told = self.scores.labels(scorer)
            for boundary in finished.boundaries:
                if (score := boundary.scores.get(scorer)) is not None:
                    told.observe(score)

    def paced(self, seconds: float, tokens: int) -> None:
        """A request wrote `tokens` tokens; `seconds` went by between its first text and its end."""
        if tokens > 1:
            self.per_token.observe(max(0.0, seconds) / (tokens - 1))

    def tell_admission(self, in_flight: int, queued: int) -> None:
        """The requests now served, and those that wait."""
        self.in_flight.set(in_flight)
        self.queued.set(queued)

    def tell_cap(self, cap: Mode) -> None:
        """Where the kill switch stands now."""
        self.mode_cap.set(_CAPS[cap])

    def text(self) -> bytes:
        """The exposition format of Prometheus: of all workers where there are several."""
        return generate_latest(self.shown())

    def shown(self) -> CollectorRegistry:
        """What is told: this app's registry, or the sum of all workers' counts."""
        folder = multiprocess_folder()
        if folder is None:
            return self.registry
        merged = CollectorRegistry()
        MultiProcessCollector(merged, path=folder)  # type: ignore[no-untyped-call]
        return merged


def multiprocess_folder() -> str | None:
    """Where prometheus_client keeps the counts of several workers; None: there is only this process."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR") or None
