"""What the proxy counts of its dealings with the plugin: events, streamed bytes, decisions made in the proxy.

Prometheus instruments that belong to no registry until `register`. Labels are bounded: kind of loss, float
type, outcome of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric

__all__ = ["Outcome", "VllmCounters"]

#: in_time: thinking ended by it. late: thinking had ended otherwise before it took effect. lost: what
#: became of it is not known. failed: the probe could not score, so there was none.
Outcome = Literal["in_time", "late", "lost", "failed"]
_DELAYS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)


class VllmCounters:
    """The instruments of one engine. `events` tells the event stream's totals by kind."""

    def __init__(self, events: Callable[[], Mapping[str, int]]) -> None:
        self._events = events
        self.boundaries = Counter(
            "desist_vllm_streamed_boundaries",
            "Boundaries whose hidden state came to the proxy.",
            ["dtype"],
            registry=None,
        )
        self.bytes = Counter(
            "desist_vllm_streamed_bytes",
            "Bytes of these hidden states; divided by the boundaries: bytes per boundary.",
            ["dtype"],
            registry=None,
        )
        self.decisions = Counter(
            "desist_vllm_proxy_decisions", "Stops decided in the proxy.", ["outcome"], registry=None
        )
        for outcome in get_args(Outcome):
            self.decisions.labels(outcome)
        self.delay = Histogram(
            "desist_vllm_proxy_decision_delay_tokens",
            "Tokens generated between the boundary and the hand-off, where the proxy decided.",
            buckets=_DELAYS,
            registry=None,
        )
        self.incomplete = Counter(
            "desist_vllm_incomplete_requests",
            "Controlled requests whose events did not all come: their counts are vLLM's own.",
            registry=None,
        )

    def streamed(self, dtype: str | None, size: int) -> None:
        """A hidden state of `size` bytes has come."""
        kind = dtype if dtype in ("float32", "bfloat16") else "other"
        self.boundaries.labels(kind).inc()
        self.bytes.labels(kind).inc(size)

    def decided(self, outcome: Outcome, delay: int | None = None) -> None:
        """What became of one decision; `delay` in tokens, for one that was in time."""
        self.decisions.labels(outcome).inc()
        if delay is not None:
            self.delay.observe(delay)

    def register(self, registry: CollectorRegistry) -> None:
        """Show the instruments in `registry`."""
        for each in (self.boundaries, self.bytes, self.decisions, self.delay, self.incomplete, self):
            registry.register(each)

    def collect(self) -> Iterable[Metric]:
        """The totals that the event stream keeps itself (prometheus' collector interface)."""
        family = CounterMetricFamily(
            "desist_vllm_events",
            "Events of the plugin: taken, lost on the way (gaps in numbers), of nobody's request.",
            labels=["kind"],
        )
        for kind, number in self._events().items():
            family.add_metric([kind], number)
        yield family
