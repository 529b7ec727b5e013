"""Control in `vllm_xargs`: what the proxy writes the engine reads, and nothing wrong gets through."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller.core import AnswerMode, Control, GiveUp, Policy
from desist.data.errors import ControlError
from desist.proxy.engines.vllm.params import PREFIX, RequestControl, read_params, to_xargs

policies = st.just(Policy()) | st.builds(
    Policy,
    scorer=st.text(min_size=1, max_size=20),
    lam=st.floats(-1e9, 1e9),
    patience=st.integers(1, 1 << 20),
    warmup_tokens=st.integers(0, 1 << 30),
    ema=st.floats(1e-9, 1.0),
    certified=st.booleans(),
    give_up=st.none() | st.builds(GiveUp, st.floats(-1e9, 1e9), st.integers(0, 1 << 30), st.booleans()),
)
controls = st.builds(
    Control,
    st.sampled_from(["off", "shadow", "active"]),
    policies,
    st.none() | st.integers(0, 1 << 30),
    st.sampled_from(["write", "extract"]),
    st.none() | st.integers(-1, 1 << 30),
)


@given(st.text(min_size=1, max_size=256), controls, st.none() | st.integers(1, 1 << 30))
@settings(max_examples=300)
def test_control_comes_back_over_json(key: str, control: Control, least: int | None) -> None:
    fields = to_xargs(key, control, min_answer_tokens=least)
    assert all(name.startswith(PREFIX) and type(value) in (str, int, float) for name, value in fields.items())
    back = read_params({**json.loads(json.dumps(fields)), "their_own": 1})
    assert back == RequestControl(key, control, None, least)
    assert back.control() == control


@pytest.mark.parametrize("given_fields", [None, {}, {"other": 1}, {"desist": 1}, {"Desist_mode": "off"}])
def test_a_request_without_our_fields_has_no_control(given_fields: dict[str, Any] | None) -> None:
    assert read_params(given_fields) is None


def test_defaults_of_a_bare_key() -> None:
    assert read_params({"desist_key": "k"}) == RequestControl("k", Control())


def test_the_key_is_optional() -> None:
    assert read_params({"desist_budget": 5}) == RequestControl("", Control(budget=5))


numbers = st.integers() | st.floats() | st.booleans() | st.none()
junk = st.none() | st.booleans() | st.binary(max_size=4) | st.lists(st.integers(), max_size=3)
words = st.text(max_size=8)


def below(least: int) -> st.SearchStrategy[int]:
    return st.integers(max_value=least - 1)


def above(most: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=most + 1, max_value=1 << 70)


BAD: dict[str, st.SearchStrategy[Any]] = {
    "key": junk | st.integers() | st.floats() | st.just("") | st.text(min_size=257, max_size=300),
    "mode": junk | numbers | words.filter(lambda text: text not in ("off", "shadow", "active")),
    "answer": junk | numbers | words.filter(lambda text: text not in ("write", "extract")),
    "scorer": junk | st.integers() | st.floats() | st.just("") | st.text(min_size=257, max_size=300),
    "lam": junk | words | st.sampled_from([float("nan"), float("inf"), float("-inf"), 1.1e9, -1.1e9]),
    "ema": junk | words | st.floats(max_value=0) | st.floats(min_value=1, exclude_min=True) | below(1),
    "patience": junk | words | st.floats() | below(1) | above(1 << 20),
    "warmup_tokens": junk | words | st.floats() | below(0) | above(1 << 30),
    "certified": junk | words | st.floats() | below(0) | above(1),
    "budget": junk | words | st.floats() | below(0) | above(1 << 30),
    "lasting": junk | words | st.floats() | below(-1) | above(1 << 30),
    "give_up": junk | words | st.sampled_from([float("nan"), float("inf"), float("-inf"), 1.1e9, -1.1e9]),
    "give_up_after": junk | words | st.floats() | below(0) | above(1 << 30),
    "give_up_certified": junk | words | st.floats() | below(0) | above(1),
    "min_answer_tokens": junk | words | st.floats() | below(1) | above(1 << 30),
    "alpha": junk
    | st.sampled_from([float("nan"), float("inf"), 0, 1, 0.0, 1.0, -0.05, 2, "0", "1", "1.0", "-0.1", "1/0"])
    | st.sampled_from(["", "a", "5%", "0,05", "nan", "1e-999999999", "1e999999999", "0x1", "1/2/3", "2/1"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_with_field_and_value(name: str) -> None:
    @given(BAD[name])
    @settings(max_examples=60)
    def refused(value: Any) -> None:
        beside = {"give_up": 0.5, "lam": 0.5} if name.startswith("give_up") else {}
        given_fields = {PREFIX + other: number for other, number in beside.items()}
        with pytest.raises(ControlError) as caught:
            read_params({"desist_key": "k", **given_fields, PREFIX + name: value})
        assert f"'{PREFIX}{name}'" in str(caught.value)
        assert repr(value)[:77] in str(caught.value)
        assert "give " in str(caught.value)
        assert len(str(caught.value)) < 300

    refused()


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"give_up": 0.9}, "lam"),
        ({"lam": 0.5, "give_up_after": 10}, "give_up"),
        ({"lam": 0.5, "give_up_certified": 1}, "give_up"),
    ],
)
def test_a_field_without_the_one_that_it_goes_with_is_refused(fields: dict[str, Any], missing: str) -> None:
    with pytest.raises(ControlError, match=f"goes with '{PREFIX}{missing}'"):
        read_params({PREFIX + name: value for name, value in fields.items()})


@given(st.text(max_size=12).filter(lambda name: name not in BAD))
def test_an_unknown_field_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ControlError, match="is not known") as caught:
        read_params({PREFIX + name: 1})
    assert f"'{PREFIX}{name}'" in str(caught.value)
    assert all(PREFIX + known in str(caught.value) for known in BAD)


def test_two_thresholds_are_refused() -> None:
    with pytest.raises(ControlError, match="both 'desist_alpha' and 'desist_lam'"):
        read_params({"desist_alpha": 0.1, "desist_lam": 0.5})


@dataclass(frozen=True)
class OnePoint:
    """A certificate reduced to what is read of it."""

    alpha: Fraction
    answer_mode: AnswerMode
    lam: float

    def policy(self) -> Policy:
        return Policy(lam=self.lam, certified=True)


STRICT, LOOSE = OnePoint(Fraction(1, 20), "write", 0.9), OnePoint(Fraction(1, 10), "write", 0.8)
SHORT = OnePoint(Fraction(1, 20), "extract", 0.7)


@pytest.mark.parametrize("alpha", [0.05, "0.05", "1/20", "5e-2"])
def test_alpha_is_read_exactly(alpha: Any) -> None:
    read = read_params({"desist_alpha": alpha})
    assert read is not None
    assert read.alpha == Fraction(1, 20)


@pytest.mark.parametrize(
    ("alpha", "answer", "lam", "certified"),
    [
        ("0.1", "write", 0.8, True),  # the loosest that is strict enough
        ("0.09", "write", 0.9, True),
        ("0.2", "extract", 0.7, True),  # the same kind of answer before the nearer alpha
    ],
)
def test_alpha_takes_the_nearest_certificate(alpha: str, answer: str, lam: float, certified: bool) -> None:
    read = read_params({"desist_alpha": alpha, "desist_answer": answer, "desist_budget": 7})
    assert read is not None
    control = read.control([STRICT, LOOSE, SHORT])
    assert (control.policy.lam, control.policy.certified) == (lam, certified)
    assert (control.budget, control.answer) == (7, answer)


def test_a_certificate_for_other_answers_certifies_nothing() -> None:
    read = read_params({"desist_alpha": 0.05, "desist_answer": "extract"})
    assert read is not None
    assert read.control([STRICT]).policy == Policy(lam=0.9, certified=False)


@pytest.mark.parametrize(
    ("certificates", "known"), [((), "none is loaded"), ((STRICT, LOOSE), r"0\.05, 0\.1")]
)
def test_an_alpha_that_nobody_certified_is_refused(certificates: Any, known: str) -> None:
    read = read_params({"desist_alpha": 0.01})
    assert read is not None
    with pytest.raises(ControlError, match=rf"'desist_alpha' is 0\.01.*{known}"):
        read.control(certificates)
