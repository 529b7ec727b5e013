"""The judge `json`: values and not spellings, found in prose, and never guessed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.errors import DataError
from desist.data.judging import Case, get_judge, right_answer, same_answer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ROUGH = st.text(st.sampled_from('{}[]",:1aé\\\n `~<>NaNtrue'), max_size=60)


def outcome(a: str, b: str, name: str = "json") -> str:
    judge = get_judge(name)
    there, back = same_answer(judge, a, b, Case()), same_answer(judge, b, a, Case())
    assert there == back
    assert (there.reason != "") or there.outcome != "unjudgeable"
    return there.outcome


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1e0}'),
        ('{"a": 0.1}', '{"a": 1.00e-1}'),
        ('{"a": -0}', '{"a": 0}'),
        ('{"n": 100000000000000000000000}', '{"n": 1e23}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": 1}', 'Here it is:\n```json\n{\n  "a": 1\n}\n```\nDone.'),
        ('{"a": 1}', 'So the result is {"a": 1}. That\'s all.'),
        ('{"a": {"b": [1, 2]}}', 'First {"x": 0} was wrong, {"a": {"b": [1, 2.0]}} is right'),
        ("[1, 2]", "It is [1, 2]."),
        ('{"a": 1}', '~~~\n{"a": 1}\n~~~'),
        ('<think>{"a": 2}</think>{"a": 1}', '{"a": 1}'),
        ("3", " 3.0 "),
    ],
)
def test_same(a: str, b: str) -> None:
    assert outcome(a, b) == "equal"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 0}', '{"a": null}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": 1}', '{"a": 1, "b": null}'),
        ('{"a": 0.1}', '{"a": 0.10000000000000001}'),
        ('{"n": 9007199254740993}', '{"n": 9007199254740992}'),
        ('{"a": 1}', "I cannot tell."),
        ('{"a": 1}', ""),
        ('{"a": 1}', "see [1]"),
    ],
)
def test_different(a: str, b: str) -> None:
    assert outcome(a, b) == "different"


@pytest.mark.parametrize(
    ("a", "reason"),
    [
        ('{"a": 1, "a": 1}', "twice"),
        ('so {"x": {"a": 1, "a": 2}} it is', "twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": {"b": 1}, "c": ', "cut off"),
        ('{"a": "text without an end', "cut off"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "deep"),
        ('{"a": 1e99999999999999999999999999}', "exponent"),
        ("x" * 300_000, "long"),
    ],
)
def test_what_means_several_things_is_not_guessed(a: str, reason: str) -> None:
    assert outcome(a, '{"a": 1}') == "unjudgeable"
    assert reason in same_answer(get_judge("json"), a, '{"a": 1}', Case()).reason


def test_two_answers_without_json_are_not_called_the_same() -> None:
    assert outcome("It rains.", "It is dry.") == "unjudgeable"


def test_parts_of_a_broken_whole_are_no_answers() -> None:
    assert outcome('{"a": {"b": 1}, oops}', '{"b": 1}') == "different"


def test_only_named_fields_count() -> None:
    mine, other = '{"city": "Bonn", "day": 1, "why": "x"}', '{"why": "y", "day": 1.0, "city": "Bonn"}'
    assert outcome(mine, other, "json:city,day") == "equal"
    assert outcome(mine, other, "json:city, why") == "different"
    assert outcome(mine, other, "json:city,month") == "unjudgeable"
    assert outcome(mine, '{"day": 1}', "json:city") == "different"
    assert outcome(mine, '{"day": 2}', "json:month,day") == "different"
    deep = '{"a": [{"b": 1}, {"b": %d}]}'
    assert outcome(deep % 2, '{"a": [0, {"b": 2}]}', "json:a.1.b") == "equal"
    assert outcome('{"a.b": 1}', '{"a": {"b": 1}}', "json:a.b") == "equal"
    assert outcome("[1]", "[2]", "json:a") == "unjudgeable"


def test_the_reference_may_be_the_bare_value() -> None:
    judge = get_judge("json:n")
    for text, gold, same in [
        ('{"n": 5}', "5.0", True),
        ('{"n": "Bonn"}', "Bonn", True),
        ('{"n": "5"}', "5", True),
        ('{"n": 5}', '{"n": 5}', True),
        ('{"n": 6}', "5", False),
        ('{"m": 5}', "5", False),
        ("no", "5", False),
        ('{"n": 1, "n": 1}', "1", None),
    ]:
        verdict = right_answer(judge, text, Case("", gold))
        assert verdict is not None
        assert verdict.same is same, (text, gold)
    assert right_answer(judge, '{"n": 5}', Case()) is None


@pytest.mark.parametrize("name", ["json:", "json:a,,b", "json[x=1]:a", "json[x]"])
def test_names_that_say_nothing_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="json"):
        get_judge(name)


@given(VALUES, st.text(max_size=20))
def test_spelling_does_not_count(value: Any, prose: str) -> None:
    plain = json.dumps(value)
    assert outcome(plain, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)) == "equal"
    if isinstance(value, (dict, list)):
        assert outcome(plain, f"{prose.replace('`', '')}\n```json\n{plain}\n```") == "equal"


@given(VALUES, VALUES)
def test_other_values_are_different(a: Any, b: Any) -> None:
    same = outcome(json.dumps({"v": a}), json.dumps({"v": b})) == "equal"
    assert same == (_typed(a) == _typed(b))


def _typed(value: Any) -> Any:
    """With bools told from numbers, which Python does not."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return [_typed(item) for item in value] if isinstance(value, list) else value


@given(ROUGH | st.text(), ROUGH | st.text())
@pytest.mark.parametrize("name", ["json", "json:a", "json:a.0,b", "tool", "option", "math"])
def test_reflexive_symmetric_and_never_raises(name: str, a: str, b: str) -> None:
    assert outcome(a, a, name) == "equal"
    outcome(a, b, name)
    right_answer(get_judge(name), a, Case("", b))


@pytest.mark.parametrize(
    "text", ['{"a":' * 30_000, "[" * 190_000, '{"a":1,' * 25_000, "{ " * 90_000, "[1,2] " * 30_000]
)
def test_no_text_takes_long(text: str) -> None:
    began = time.perf_counter()
    outcome(text, '{"a": 1}')
    assert time.perf_counter() - began < 20
