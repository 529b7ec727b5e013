"""Traces with planted hidden states: a known direction carries the label, the rest is noise.

Each problem also has a fingerprint of its own in the hidden states (as real ones do), so that a split by
boundary would let a probe recognise problems.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from desist.data.schema import BoundaryRecord, Trace
from desist.probes.features import HiddenSet, HiddenWriter, TokenHiddenWriter, read_hidden

__all__ = ["FINGERPRINTS", "planted", "token_planted"]

FINGERPRINTS = {"model": "fake", "tokenizer": "bytes"}
GAP = 10


def _trace(name: str, labels: list[bool], problem: str | None = None) -> Trace:
    reasoning = "so x wait " * (len(labels) + 1)
    boundaries = tuple(
        BoundaryRecord(
            index=i,
            position=GAP * (i + 1),
            char=GAP * (i + 1),
            kind="cue",
            text="wait",
            forced_answer="42" if label else f"{i % 3}",
            forced_tokens=5,
            consistent=label,
            correct=label,
        )
        for i, label in enumerate(labels)
    )
    return Trace(
        trace_id=f"trace-{name}",
        problem_id=problem or f"problem-{name}",
        model="fake",
        problem=f"Problem {name}?",
        reasoning=reasoning,
        answer="42",
        n_reasoning_tokens=GAP * (len(labels) + 1),
        n_answer_tokens=5,
        boundaries=boundaries,
    )


def planted(
    folder: Path,
    n_problems: int,
    *,
    strength: float,
    seed: int = 0,
    taps: tuple[int, ...] = (1, 3),
    dim: int = 8,
    fingerprint: float = 1.0,
    constant_problem: bool = False,
) -> tuple[list[Trace], HiddenSet]:
    """`n_problems` traces of 2 to 7 boundaries; hidden states of the last tap lean `strength` by the label.

    `constant_problem`: every boundary of a problem has the same label, drawn by a coin.
    """
    rng = np.random.default_rng(seed)
    width = len(taps) * dim
    direction = np.zeros(width)
    direction[-dim:] = 1 / np.sqrt(dim)
    traces = []
    with HiddenWriter(folder, taps, dim, "float32", fingerprints=FINGERPRINTS, shard_rows=500) as writer:
        for number in range(n_problems):
            count = int(rng.integers(2, 8))
            labels = (np.arange(count) + rng.integers(-3, 4) > 2) ^ (rng.random(count) < 0.1)
            if constant_problem:
                labels[:] = rng.random() < 0.5
            own = fingerprint * rng.normal(size=width)
            rows = own + rng.normal(size=(count, width)) * 0.5
            rows += strength * np.outer(2.0 * labels - 1, direction)
            rows = 3.0 * rows + 7.0
            trace = _trace(f"{seed}-{number}", [bool(label) for label in labels])
            writer.add(trace.trace_id, range(count), rows)
            traces.append(trace)
    return traces, read_hidden(folder)


def token_planted(
    folder: Path, n_traces: int, *, seed: int = 0, dim: int = 6
) -> tuple[list[Trace], HiddenSet]:
    """Traces in whose tokens a special token occurs once (or never); a boundary is right once it was seen.

    Column 0 of a token's hidden state marks the special token and nothing later, so only a memory can tell.
    """
    rng = np.random.default_rng(seed)
    traces = []
    with TokenHiddenWriter(folder, 2, dim, "float16", fingerprints=FINGERPRINTS) as writer:
        for number in range(n_traces):
            count = int(rng.integers(2, 6))
            length = GAP * (count + 1)
            seen: int | None = int(rng.integers(0, length)) if rng.random() < 0.85 else None
            rows: npt.NDArray[np.float64] = 0.3 * rng.normal(size=(length, dim))
            if seen is not None:
                rows[seen, 0] += 4.0
            labels = [seen is not None and seen < GAP * (i + 1) for i in range(count)]
            trace = _trace(f"tok{seed}-{number}", labels)
            writer.add(trace.trace_id, rows)
            traces.append(trace)
    return traces, read_hidden(folder)
