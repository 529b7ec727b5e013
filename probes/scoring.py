"""Saved traces in, the same traces with the probe's score at every boundary out.

Uses the probe's own live methods on the stored hidden states, so that a replay compares the threshold with
the number that the live system computes. Knows no policy and no label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes.artifact import AnyProbe
from desist.probes.features import HiddenSet
from desist.probes.rom import RomProbe

__all__ = ["score_traces", "trace_scores"]


def trace_scores(trace: Trace, hidden: HiddenSet, probe: AnyProbe) -> list[float | None]:
    """One score per boundary of the trace. A boundary before the first token has none in a stream."""
    if not trace.boundaries:
        return []
    wanted = "tokens" if isinstance(probe, RomProbe) else "boundaries"
    if hidden.store != wanted:
        raise ProbeError(
            f"a probe of family {probe.card.family!r} needs one hidden state for each of the {wanted}; "
            f"this folder holds {hidden.store}. Give the other folder, or collect with the other kind kept."
        )
    columns = hidden.columns(probe.card.taps)
    if isinstance(probe, RomProbe):
        rows = hidden.of_trace(trace.trace_id)
        if len(rows) != trace.n_reasoning_tokens:
            raise ProbeError(
                f"trace {trace.trace_id}: {len(rows)} token rows for {trace.n_reasoning_tokens} reasoning "
                "tokens. The traces and the hidden states come from different runs: collect again."
            )
        stream = probe.scan(torch.from_numpy(rows[:, columns])).tolist()
        return [stream[b.position - 1] if b.position > 0 else None for b in trace.boundaries]
    rows = hidden.of_trace(trace.trace_id, [boundary.index for boundary in trace.boundaries])
    return list(probe.score(torch.from_numpy(rows[:, columns])).tolist())


def score_traces(
    traces: Iterable[Trace], hidden: HiddenSet, probe: AnyProbe, name: str = "probe"
) -> Iterator[Trace]:
    """Yield the traces with `scores[name]` at every boundary (an older score of that name is replaced)."""
    for trace in traces:
        scores = trace_scores(trace, hidden, probe)
        boundaries = tuple(
            boundary
            if score is None
            else dataclasses.replace(boundary, scores={**boundary.scores, name: score})
            for boundary, score in zip(trace.boundaries, scores, strict=True)
        )
        yield dataclasses.replace(trace, boundaries=boundaries)
