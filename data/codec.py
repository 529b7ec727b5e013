"""Records as mappings and back: the edge where traces and problems are validated.

Knows the schema's fields, their types and what they must hold together. Every complaint is a
`RecordError` that names source, line, field, the value found and what to do. Knows nothing of files.

Unknown fields are refused, so that a misspelt one is not lost in silence; fields whose names begin with
`x_` are other people's and are kept in `provenance` (problems have none: there they are left out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from desist.data.errors import RecordError
from desist.data.fields import FieldReader, shown
from desist.data.json_text import encode_json
from desist.data.schema import BOUNDARY_KINDS, BoundaryRecord, Message, Problem, Sampling, Trace
from desist.data.splits import problem_id

__all__ = [
    "problem_from_dict",
    "problem_to_dict",
    "problem_to_json",
    "trace_from_dict",
    "trace_to_dict",
    "trace_to_json",
]

_TRACE_FIELDS = frozenset(Trace.__dataclass_fields__)
_BOUNDARY_FIELDS = frozenset(BoundaryRecord.__dataclass_fields__)
_SAMPLING_FIELDS = frozenset(Sampling.__dataclass_fields__)
_PROBLEM_FIELDS = frozenset({"problem_id", "problem", "gold", "group", "dataset"})


def _record(value: object, source: str, line: int) -> FieldReader:
    if not isinstance(value, Mapping):
        raise RecordError(
            source,
            line,
            "(record)",
            f"expected an object, found {type(value).__name__}",
            "Write one JSON object a line.",
        )
    return FieldReader(value, source, line)


def _boundary(value: object, number: int, source: str, line: int) -> BoundaryRecord:
    prefix = f"boundaries[{number}]"
    if not isinstance(value, Mapping):
        raise RecordError(
            source, line, prefix, f"expected an object, found {type(value).__name__}", "Correct it."
        )
    read = FieldReader(value, source, line, prefix + ".")
    read.known(_BOUNDARY_FIELDS)
    kind = read.text("kind")
    if kind not in BOUNDARY_KINDS:
        read.fail("kind", f"unknown kind {shown(kind)}", f"Known kinds: {', '.join(BOUNDARY_KINDS)}.")
    scores = read.mapping("scores")
    score = FieldReader(scores, source, line, prefix + ".scores.")
    return BoundaryRecord(
        index=read.count("index"),
        position=read.count("position"),
        char=read.count("char"),
        kind=kind,
        text=read.text("text", ""),
        scores={name: score.number(name, high=1.0) for name in scores},
        forced_answer=read.text("forced_answer", None),
        forced_confidence=read.number("forced_confidence", None, high=1.0),
        forced_tokens=read.count("forced_tokens", None),
        consistent=read.truth("consistent", None),
        correct=read.truth("correct", None),
    )


def _converted(values: Sequence[Any]) -> tuple[BoundaryRecord, ...] | None:
    """The boundaries of a sound record, read five times faster; None where anything is out of the ordinary.

    Accepts nothing that `_boundary` does not, and then gives the same: whoever gets None asks that one, which
    tells what is wrong.
    """
    try:
        found = msgspec.convert(values, tuple[BoundaryRecord, ...])
        for value, record in zip(values, found, strict=True):
            tokens, confidence = record.forced_tokens, record.forced_confidence
            if not (
                "scores" in value
                and value.keys() <= _BOUNDARY_FIELDS
                and record.index >= 0 <= record.position
                and record.char >= 0
                and all(0.0 <= score <= 1.0 for score in record.scores.values())
                and (tokens is None or tokens >= 0)
                and (confidence is None or 0.0 <= confidence <= 1.0)
            ):
                return None
    except (msgspec.MsgspecError, TypeError, OverflowError):
        return None
    return found


def _boundaries(read: FieldReader, reasoning: str, n_tokens: int) -> tuple[BoundaryRecord, ...]:
    values = read.items("boundaries")
    found = _converted(values)
    if found is None:
        found = tuple(_boundary(value, number, read.source, read.line) for number, value in enumerate(values))
    index, position, char = -1, 0, 0
    for number, boundary in enumerate(found):
        field = f"boundaries[{number}]."
        if boundary.index <= index:
            what = "occurs twice" if boundary.index == index else f"comes after {index}"
            read.fail(
                field + "index", f"index {boundary.index} {what}", "Number the boundaries upwards, each once."
            )
        if boundary.position < position or boundary.char < char:
            name = "position" if boundary.position < position else "char"
            read.fail(
                field + name,
                f"{getattr(boundary, name)} lies before the boundary in front of it",
                "Sort the boundaries by position.",
            )
        if boundary.position > n_tokens:
            read.fail(
                field + "position",
                f"{boundary.position} lies after the {n_tokens} reasoning tokens",
                "Count positions and n_reasoning_tokens with the same tokenizer.",
            )
        if boundary.char > len(reasoning):
            read.fail(
                field + "char",
                f"{boundary.char} lies after the {len(reasoning)} characters of the reasoning",
                "Count characters of the text, not bytes.",
            )
        index, position, char = boundary.index, boundary.position, boundary.char
    return found


def _sampling(read: FieldReader) -> Sampling:
    inner = FieldReader(read.mapping("sampling"), read.source, read.line, "sampling.")
    inner.known(_SAMPLING_FIELDS)
    seed = inner.values.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        inner.fail("seed", f"expected a whole number, found {shown(seed)}", "Correct the value.")
    default = Sampling()
    return Sampling(
        temperature=inner.number("temperature", default.temperature),
        top_p=inner.number("top_p", default.top_p, high=1.0),
        seed=seed,
        max_tokens=inner.count("max_tokens", None),
    )


def _prompt(read: FieldReader) -> str | tuple[Message, ...] | None:
    value = read.values.get("prompt")
    if value is None or isinstance(value, str):
        return value
    messages = read.items("prompt")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            read.fail(
                f"prompt[{number}]",
                f"expected a message, found {shown(message)}",
                "Give text or chat messages.",
            )
    return tuple(dict(message) for message in messages)


def trace_from_dict(value: object, source: str = "(memory)", line: int = 1) -> Trace:
    """A validated trace. A missing `problem_id` is derived from the problem's text.

    Raises `RecordError` at the first thing that is wrong.
    """
    read = _record(value, source, line)
    foreign = read.known(_TRACE_FIELDS)
    problem, reasoning = read.text("problem"), read.text("reasoning")
    n_reasoning_tokens = read.count("n_reasoning_tokens")
    identity = read.text("problem_id", None)
    if not identity:
        if not problem.strip():
            read.fail("problem_id", "neither problem_id nor problem has a value", "Give one of them.")
        identity = problem_id(problem)
    return Trace(
        trace_id=read.text("trace_id", empty=False),
        problem_id=identity,
        model=read.text("model"),
        problem=problem,
        reasoning=reasoning,
        answer=read.text("answer"),
        n_reasoning_tokens=n_reasoning_tokens,
        n_answer_tokens=read.count("n_answer_tokens"),
        truncated=read.truth("truncated", False),
        group=read.text("group", None),
        dataset=read.text("dataset", None),
        prompt=_prompt(read),
        gold=read.text("gold", None),
        full_correct=read.truth("full_correct", None),
        sampling=_sampling(read),
        boundaries=_boundaries(read, reasoning, n_reasoning_tokens),
        provenance={**read.mapping("provenance"), **foreign},
    )


def _fields(value: object, fields: frozenset[str]) -> dict[str, Any]:
    """Fields in the order of the schema, without those that are None."""
    names = (name for name in type(value).__dataclass_fields__ if name in fields)  # type: ignore[attr-defined]
    return {name: item for name in names if (item := getattr(value, name)) is not None}


def trace_to_dict(trace: Trace) -> dict[str, Any]:
    """The mapping that `trace_from_dict` reads back to an equal trace. Fields that are None are left out."""
    record = _fields(trace, _TRACE_FIELDS)
    record["sampling"] = _fields(trace.sampling, _SAMPLING_FIELDS)
    record["boundaries"] = [
        {**_fields(boundary, _BOUNDARY_FIELDS), "scores": dict(boundary.scores)}
        for boundary in trace.boundaries
    ]
    record["provenance"] = dict(trace.provenance)
    if isinstance(trace.prompt, tuple):
        record["prompt"] = [dict(message) for message in trace.prompt]
    return record


def problem_from_dict(value: object, source: str = "(memory)", line: int = 1) -> Problem:
    """A validated problem: `problem` is required, a missing `problem_id` is derived from its text."""
    read = _record(value, source, line)
    read.known(_PROBLEM_FIELDS)
    text = read.text("problem", empty=False)
    return Problem(
        problem_id=read.text("problem_id", None) or problem_id(text),
        text=text,
        gold=read.text("gold", None),
        group=read.text("group", None),
        dataset=read.text("dataset", None),
    )


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """The mapping that `problem_from_dict` reads back. Fields that are None are left out."""
    record = {"problem_id": problem.problem_id, "problem": problem.text}
    return record | _fields(problem, frozenset({"gold", "group", "dataset"}))


def trace_to_json(trace: Trace, source: str, number: int) -> bytes:
    """A trace as one line of JSON, validated, so that what is written can be read."""
    record = trace_to_dict(trace)
    trace_from_dict(record, source, number)
    return encode_json(record, source, number)


def problem_to_json(problem: Problem, source: str, number: int) -> bytes:
    """A problem as one line of JSON, validated."""
    record = problem_to_dict(problem)
    problem_from_dict(record, source, number)
    return encode_json(record, source, number)
