"""What scored traces say of themselves: their scorers, and how they were made.

Knows provenance as `desist collect` writes it; traces of other origin say less, and then defaults hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast, get_args

from desist.controller.core import AnswerMode
from desist.data.errors import CalibrationError
from desist.data.schema import BOUNDARY_KINDS, BoundaryKind, Trace

__all__ = ["Declared", "certified_kinds", "declared", "only_scorer"]


class Declared(NamedTuple):
    """How the traces were made. `fingerprints` are empty where they do not say."""

    fingerprints: Mapping[str, str]
    judge: str
    answer_mode: AnswerMode


def only_scorer(traces: Sequence[Trace]) -> str:
    """The one score that the traces hold. Raises CalibrationError where there are several, or none."""
    names = sorted({name for trace in traces for boundary in trace.boundaries for name in boundary.scores})
    if len(names) == 1:
        return names[0]
    if not names:
        raise CalibrationError(
            "no boundary has a score. Score the traces (`desist score`), or write `scores` to each boundary."
        )
    raise CalibrationError(
        f"the traces hold {len(names)} scores: {', '.join(names)}. Name one with --scorer."
    )


def declared(traces: Sequence[Trace]) -> Declared:
    """Judge, answer mode and fingerprints of the traces. Raises CalibrationError where they disagree."""
    judge = _same(traces, "judge", "math")
    mode = _same(traces, "answer_mode", "write")
    if mode not in get_args(AnswerMode):
        raise CalibrationError(f"provenance.answer_mode is {mode!r}. Write 'write' or 'extract' there.")
    prints: dict[str, str] = {}
    for trace in traces:
        told = trace.provenance.get("fingerprints")
        for name, value in (told if isinstance(told, Mapping) else {}).items():
            if prints.setdefault(str(name), str(value)) != str(value):
                raise CalibrationError(
                    f"the traces were not made alike: '{name}' is {prints[str(name)]!r} in some and "
                    f"{value!r} in {trace.trace_id}. Calibrate each kind by itself."
                )
    return Declared(prints, judge, cast(AnswerMode, mode))


def certified_kinds(text: str | None) -> tuple[BoundaryKind, ...] | None:
    """Boundary kinds from a comma-separated list; None: all there are. Raises CalibrationError."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in BOUNDARY_KINDS]
    if unknown or not names:
        raise CalibrationError(f"boundary kinds are {text!r}. Choose from {', '.join(BOUNDARY_KINDS)}.")
    return cast(tuple[BoundaryKind, ...], names)


def _same(traces: Sequence[Trace], key: str, default: str) -> str:
    values = sorted({str(trace.provenance[key]) for trace in traces if trace.provenance.get(key) is not None})
    if len(values) > 1:
        raise CalibrationError(
            f"provenance.{key} is {' and '.join(values)} in these traces. Calibrate each kind by itself."
        )
    return values[0] if values else default
