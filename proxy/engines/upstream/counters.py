"""What is counted of calls to the server behind: attempts, calls made again, continuations that failed.

Prometheus instruments that belong to no registry until `register`. Labels are words of fixed lists.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from desist.data.errors import UpstreamError
from desist.proxy.telemetry.metrics import Instrument

__all__ = ["UpstreamCounters", "result_of"]


def result_of(error: UpstreamError | None) -> str:
    """ok, refused (4xx), busy (429, 503), failed (other 5xx), timeout, or unreachable."""
    if error is None:
        return "ok"
    status = error.status or 502
    if type(error) is UpstreamError or getattr(error, "unanswered", False):
        return "timeout" if status == 504 else "unreachable"
    return "busy" if status in (429, 503) else "failed" if status >= 500 else "refused"


class UpstreamCounters:
    """The instruments of one engine."""

    def __init__(self) -> None:
        says = {
            "attempts": "Calls to the server behind, by how they began.",
            "retries": "Calls made again after a failure, by the result of the call before.",
            "continuations": "Calls that should have written the answer after a stop, and failed.",
        }
        self.attempts = Counter("desist_upstream_attempts", says["attempts"], ["result"], registry=None)
        self.retries = Counter("desist_retries", says["retries"], ["reason"], registry=None)
        self.continuation_failures = Counter(
            "desist_continuation_failures", says["continuations"], registry=None
        )
        self.instruments = (
            Instrument("desist_upstream_attempts_total", "counter", ("result",), says["attempts"]),
            Instrument("desist_retries_total", "counter", ("reason",), says["retries"]),
            Instrument("desist_continuation_failures_total", "counter", (), says["continuations"]),
        )

    def attempted(self, error: UpstreamError | None) -> None:
        """A call began to be answered, or failed before."""
        self.attempts.labels(result_of(error)).inc()

    def retried(self, error: UpstreamError) -> None:
        """A call is made again after `error`."""
        self.retries.labels(result_of(error)).inc()

    def register(self, registry: CollectorRegistry) -> None:
        """Show the instruments in `registry`."""
        for each in (self.attempts, self.retries, self.continuation_failures):
            registry.register(each)
