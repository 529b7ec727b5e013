"""Plain text with think tags: one file, one trace.

Knows the tags (`desist.data.thinking`) only. The problem is not in such a file, so the trace gets an id of
its own in its place; a file without tags is an answer without reasoning.
"""

from __future__ import annotations

import hashlib

from desist.data.importers.places import estimate_tokens, text_boundaries
from desist.data.importers.report import ImportReport, Unusable
from desist.data.schema import Trace
from desist.data.thinking import split_thinking

__all__ = ["tagged_traces"]


def tagged_traces(value: object, number: int, report: ImportReport) -> list[Trace]:
    """The trace in a model's output. A block that is never closed makes it truncated."""
    if not isinstance(value, str) or not value.strip():
        raise Unusable("the text is empty")
    reasoning, answer, closed = split_thinking(value)
    n_tokens = estimate_tokens(reasoning)
    identity = f"text-{hashlib.sha256(value.encode()).hexdigest()[:16]}"
    report.notes["plain text: problem unknown"] += 1
    return [
        Trace(
            trace_id=identity,
            problem_id=f"unknown-{identity}",
            model="",
            problem="",
            reasoning=reasoning,
            answer=answer,
            n_reasoning_tokens=n_tokens,
            n_answer_tokens=estimate_tokens(answer) + (1 if reasoning and closed else 0),
            truncated=not closed,
            boundaries=text_boundaries(reasoning, n_tokens),
            provenance={"format": "text", "token_count": "estimated", "positions": "estimated"},
        )
    ]
