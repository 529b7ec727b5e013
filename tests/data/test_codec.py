"""The edge: what is valid survives the round trip, what is not is refused with place and remedy."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.codec import (
    _boundary,
    _converted,
    problem_from_dict,
    problem_to_dict,
    trace_from_dict,
    trace_to_dict,
    trace_to_json,
)
from desist.data.errors import DataError, RecordError
from desist.data.fingerprint import canonical_json, fingerprint
from desist.data.json_text import decode_json
from desist.data.schema import BOUNDARY_KINDS, BoundaryRecord, Problem, Sampling, Trace
from desist.data.splits import problem_id

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe_text = st.none() | text
share = st.floats(0, 1)
whole = st.integers(0, 2**40)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def boundaries(draw: st.DrawFn, n_chars: int, n_tokens: int) -> tuple[BoundaryRecord, ...]:
    count = draw(st.integers(0, 4))
    indices = sorted(draw(st.sets(st.integers(0, 50), min_size=count, max_size=count)))
    positions = sorted(draw(st.lists(st.integers(0, n_tokens), min_size=count, max_size=count)))
    chars = sorted(draw(st.lists(st.integers(0, n_chars), min_size=count, max_size=count)))
    return tuple(
        BoundaryRecord(
            index=indices[n],
            position=positions[n],
            char=chars[n],
            kind=draw(st.sampled_from(BOUNDARY_KINDS)),
            text=draw(text),
            scores=draw(st.dictionaries(text, share, max_size=2)),
            forced_answer=draw(maybe_text),
            forced_confidence=draw(st.none() | share),
            forced_tokens=draw(st.none() | whole),
            consistent=draw(st.none() | st.booleans()),
            correct=draw(st.none() | st.booleans()),
        )
        for n in range(count)
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    reasoning, n_tokens = draw(text), draw(st.integers(0, 1000))
    messages = st.lists(st.dictionaries(text, json_values, max_size=2), max_size=2).map(tuple)
    return Trace(
        trace_id=draw(text.filter(str.strip)),
        problem_id=draw(text.filter(bool)),
        model=draw(text),
        problem=draw(text),
        reasoning=reasoning,
        answer=draw(text),
        n_reasoning_tokens=n_tokens,
        n_answer_tokens=draw(whole),
        truncated=draw(st.booleans()),
        group=draw(maybe_text),
        dataset=draw(maybe_text),
        prompt=draw(st.none() | text | messages),
        gold=draw(maybe_text),
        full_correct=draw(st.none() | st.booleans()),
        sampling=Sampling(
            draw(st.floats(0, 5)), draw(share), draw(st.none() | st.integers()), draw(st.none() | whole)
        ),
        boundaries=draw(boundaries(len(reasoning), n_tokens)),
        provenance=draw(st.dictionaries(text, json_values, max_size=3)),
    )


@given(traces())
def test_a_trace_survives_the_round_trip(trace: Trace) -> None:
    assert trace_from_dict(trace_to_dict(trace)) == trace
    assert pickle.loads(pickle.dumps(trace_from_dict(trace_to_dict(trace)))) == trace
    if trace.sampling.seed is None or -(2**63) <= trace.sampling.seed < 2**63:
        assert trace_from_dict(decode_json(trace_to_json(trace, "memory", 1), "memory", 1)) == trace


@given(st.data())
def test_reading_boundaries_fast_takes_nothing_that_is_refused_with_care(
    data: st.DataObject,
) -> None:
    sound = {
        "index": 0,
        "position": 4,
        "char": 5,
        "kind": "cue",
        "scores": {"probe": 0.5},
        "forced_tokens": 3,
    }
    names = st.sampled_from([*BoundaryRecord.__dataclass_fields__, "note"])
    odd = json_values | st.sampled_from([math.nan, math.inf, 1, {"probe": 1}, {"probe": True}, {1: 0.5}])
    value = {**sound, **data.draw(st.dictionaries(names, odd, max_size=2))}
    try:
        expected: BoundaryRecord | None = _boundary(value, 0, "memory", 1)
    except RecordError:
        expected = None
    found = _converted([value])
    assert found is None or found == (expected,)
    assert _converted([sound]) == (_boundary(sound, 0, "memory", 1),)


@given(text.filter(str.strip), maybe_text, maybe_text)
def test_a_problem_survives_the_round_trip(problem: str, gold: str | None, group: str | None) -> None:
    whole_problem = Problem(problem_id(problem), problem, gold, group)
    assert problem_from_dict(problem_to_dict(whole_problem)) == whole_problem


def record(**changes: Any) -> dict[str, Any]:
    base = {
        "trace_id": "t1",
        "model": "m",
        "problem": "1+1?",
        "reasoning": "one and one. Wait, yes",
        "answer": "2",
        "n_reasoning_tokens": 10,
        "n_answer_tokens": 2,
        "boundaries": [
            {"index": 0, "position": 4, "char": 5, "kind": "cue"},
            {"index": 1, "position": 8, "char": 9, "kind": "paragraph"},
        ],
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not ...}


def boundary(**changes: Any) -> dict[str, Any]:
    return record(boundaries=[{"index": 0, "position": 4, "char": 5, "kind": "cue", **changes}])


BROKEN: list[tuple[object, str, str]] = [
    ([1], "(record)", "expected an object, found list"),
    (record(trace_id=...), "trace_id", "the field is missing"),
    (record(trace_id=" "), "trace_id", "the text is empty"),
    (record(trace_id=7), "trace_id", "expected text, found int 7"),
    (record(reasoning=None), "reasoning", "expected text, found NoneType None"),
    (record(n_reasoning_tokens=-1), "n_reasoning_tokens", "-1 is below 0"),
    (record(n_reasoning_tokens=True), "n_reasoning_tokens", "expected a whole number, found bool"),
    (record(n_answer_tokens=1.5), "n_answer_tokens", "expected a whole number, found float 1.5"),
    (record(truncated=1), "truncated", "expected true or false, found int 1"),
    (record(full_correct="yes"), "full_correct", "expected true or false"),
    (record(problem=" "), "problem_id", "neither problem_id nor problem has a value"),
    (record(answr="2"), "answr", "unknown field with value '2'"),
    (record(prompt=[1]), "prompt[0]", "expected a message, found 1"),
    (record(prompt=5), "prompt", "expected a list, found int 5"),
    (record(provenance=[]), "provenance", "expected an object, found list"),
    (record(sampling={"temperature": -1}), "sampling.temperature", "-1 is not 0 or more"),
    (record(sampling={"top_p": 2}), "sampling.top_p", "2 is not in [0, 1]"),
    (record(sampling={"seed": "x"}), "sampling.seed", "expected a whole number, found 'x'"),
    (record(sampling={"top_k": 2}), "sampling.top_k", "unknown field"),
    (record(boundaries={"index": 1}), "boundaries", "expected a list, found dict"),
    (record(boundaries=[3]), "boundaries[0]", "expected an object, found int"),
    (boundary(kind="word"), "boundaries[0].kind", "unknown kind 'word'"),
    (boundary(kind=...), "boundaries[0].kind", "expected text"),
    (boundary(index=-1), "boundaries[0].index", "-1 is below 0"),
    (boundary(position=11), "boundaries[0].position", "11 lies after the 10 reasoning tokens"),
    (boundary(char=99), "boundaries[0].char", "99 lies after the 22 characters"),
    (boundary(scores={"probe": 1.2}), "boundaries[0].scores.probe", "1.2 is not in [0, 1]"),
    (boundary(scores={"probe": math.nan}), "boundaries[0].scores.probe", "nan is not finite"),
    (boundary(scores={"probe": -math.inf}), "boundaries[0].scores.probe", "-inf is not finite"),
    (boundary(scores={"probe": None}), "boundaries[0].scores.probe", "expected a number, found NoneType"),
    (boundary(scores={"probe": True}), "boundaries[0].scores.probe", "expected a number, found bool"),
    (boundary(forced_tokens=-3), "boundaries[0].forced_tokens", "-3 is below 0"),
    (boundary(forced_confidence=1.1), "boundaries[0].forced_confidence", "1.1 is not in [0, 1]"),
    (boundary(note="x"), "boundaries[0].note", "unknown field"),
    (
        record(boundaries=[{"index": 0, "position": 4, "char": 5, "kind": "cue"}] * 2),
        "boundaries[1].index",
        "index 0 occurs twice",
    ),
    (
        record(
            boundaries=[
                {"index": 0, "position": 4, "char": 5, "kind": "cue"},
                {"index": 1, "position": 3, "char": 6, "kind": "cue"},
            ]
        ),
        "boundaries[1].position",
        "3 lies before the boundary in front of it",
    ),
]


@pytest.mark.parametrize(("value", "field", "problem"), BROKEN)
def test_a_broken_record_is_refused_with_its_place(value: object, field: str, problem: str) -> None:
    with pytest.raises(RecordError) as caught:
        trace_from_dict(value, "traces.jsonl", 17)
    error = caught.value
    assert (error.source, error.line, error.field) == ("traces.jsonl", 17, field)
    assert problem in error.problem
    assert error.remedy.endswith(".")
    assert str(error).startswith(f"traces.jsonl, line 17, field '{field}': ")


def test_the_valid_record_is_valid_and_foreign_fields_are_kept() -> None:
    trace = trace_from_dict(record(x_run="r7", provenance={"source": "s"}))
    assert trace.problem_id == problem_id("1+1?")
    assert trace.provenance == {"source": "s", "x_run": "r7"}


@pytest.mark.parametrize(
    "value", [{"problem": 3}, {"problem": ""}, {"gold": "2"}, {"problem": "p", "answer": "2"}]
)
def test_a_broken_problem_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"problems, line 3"):
        problem_from_dict(value, "problems", 3)


def test_what_json_cannot_hold_is_refused_on_writing() -> None:
    for provenance in ({"a": [math.nan]}, {"a": object()}, {"a": "\ud800"}):
        with pytest.raises(RecordError):
            trace_to_json(trace_from_dict(record(provenance=provenance)), "out.jsonl", 1)


def test_fingerprints_depend_on_the_value_alone() -> None:
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint(Sampling(seed=1)) == fingerprint(
        trace_to_dict(trace_from_dict(record()))["sampling"]
        | {"temperature": 1.0, "top_p": 1.0, "seed": 1, "max_tokens": None}
    )
    assert len(fingerprint("x")) == 16
    assert fingerprint({1, 2}) == fingerprint({2, 1}) != fingerprint({1, 3})
    assert canonical_json({"ä": b""}).startswith('{"ä":{"sha256":"e3b0')
    with pytest.raises(DataError, match="cannot fingerprint"):
        fingerprint({"a": math.nan})
    with pytest.raises(DataError, match="cannot fingerprint object"):
        fingerprint(object())
