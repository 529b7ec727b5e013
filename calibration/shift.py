"""Weights of calibration problems for a later traffic, from what their prompts show before they are run.

Knows prompts (length, characters, dataset or group), never scores, answers or lengths of runs: what happens
on a given problem is assumed not to change, only which problems come.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from desist.calibration.group_keys import prompt_text
from desist.calibration.problems import one_per_problem, problem_hash
from desist.calibration.weighted import estimate_weights
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["WEIGHT", "column_weights", "prompt_features", "shift_weights", "traffic_print"]

WEIGHT = "weight"
"""Key of `provenance` under which estimated weights are kept."""

_FEWEST = 50
_CLIP = 5.0


def shift_weights(traces: Sequence[Trace], later: Sequence[Trace], seed: int = 0) -> list[Trace]:
    """`traces` with the weight of their problem for the traffic of `later` in `provenance`.

    One trace of each problem on either side makes the estimate (see `estimate_weights`; weights lie between
    1/5 and 5). Raises CalibrationError for fewer than 50 problems on a side, or kinds of problems in the
    later traffic that calibration has none of: no weight can stand for those.
    """
    here, _ = one_per_problem(traces, seed)
    there, _ = one_per_problem(later, seed)
    if min(len(here), len(there)) < _FEWEST:
        raise CalibrationError(
            f"{len(here)} calibration problems and {len(there)} later ones; a shift is estimated from "
            f"{_FEWEST} of each at least. Collect more prompts of the later traffic (answers are not needed)."
        )
    names = sorted({_kind(trace) for trace in here})
    unknown = sorted({_kind(trace) for trace in there} - set(names))
    if unknown:
        raise CalibrationError(
            f"the later traffic holds {', '.join(unknown)}, of which calibration has no problem. Calibrate "
            "on audits of the new traffic."
        )
    weights = estimate_weights(prompt_features(here, names), prompt_features(there, names), _CLIP, seed)
    known = {problem_hash(trace): float(weight) for trace, weight in zip(here, weights, strict=True)}
    return [
        replace(trace, provenance={**trace.provenance, WEIGHT: known[problem_hash(trace)]})
        for trace in traces
    ]


def column_weights(traces: Sequence[Trace], name: str) -> NDArray[np.float64]:
    """`provenance[name]` of each trace, [n], scaled to a mean of 1.

    Raises CalibrationError where a weight is missing or no positive number.
    """
    found = []
    for trace in traces:
        value = trace.provenance.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise CalibrationError(
                f"trace {trace.trace_id} has provenance.{name} = {value!r}; a weight is a positive number. "
                "Write one to every trace, or estimate them with --shift."
            )
        found.append(float(value))
    weights = np.asarray(found, dtype=np.float64)
    return weights / weights.mean() if len(weights) else weights


def prompt_features(traces: Sequence[Trace], kinds: Sequence[str]) -> NDArray[np.float64]:
    """Length, kinds of characters and kind of problem, [n, 5 + kinds]."""
    rows = [[*_characters(prompt_text(trace)), *(_kind(trace) == kind for kind in kinds)] for trace in traces]
    return np.asarray(rows, dtype=np.float64)


def traffic_print(later: Sequence[Trace]) -> str:
    """SHA-256 of the later problems: which traffic the weights were estimated for."""
    return hashlib.sha256("\n".join(sorted({problem_hash(trace) for trace in later})).encode()).hexdigest()


def _kind(trace: Trace) -> str:
    return trace.group or trace.dataset or "(none)"


def _characters(text: str) -> Sequence[float]:
    count = max(1, len(text))
    digits, letters = sum(map(str.isdigit, text)), sum(map(str.isalpha, text))
    foreign, lines = sum(letter > "\x7f" for letter in text), text.count("\n")
    return (math.log(count), digits / count, letters / count, foreign / count, math.log1p(lines))
