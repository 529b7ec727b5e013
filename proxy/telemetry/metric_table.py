"""The table of all metrics for the docs, made from the instruments themselves. Knows no values."""

from __future__ import annotations

from collections.abc import Iterable

from desist.proxy.telemetry.metrics import Instrument, Metrics

__all__ = ["metric_table"]


def metric_table() -> str:
    """Every metric of the proxy itself as a Markdown table; an engine's own come after its start."""
    from desist.proxy.engines.upstream.counters import UpstreamCounters

    own: Iterable[Instrument] = (*Metrics().instruments, *UpstreamCounters().instruments)
    rows = ["| metric | kind | labels | | OpenTelemetry name nearest to it |", "|---|---|---|---|---|"]
    for each in own:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        otel = f"`{each.otel}`" if each.otel else ""
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.says} | {otel} |")
    return "\n".join(rows) + "\n"
