"""Groups known before the run: how they are formed, which are calibrated, and what each statement says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.calibration import CannotCertify, Certificate, calibrate, calibrate_groups, form_groups
from desist.calibration.exact import exact
from desist.calibration.group_keys import (
    REST,
    GroupRule,
    Known,
    known_of,
    length_band,
    messages_text,
    rule_for,
)
from desist.calibration.languages import language_of, script_of
from desist.calibration.pac import smallest_n
from desist.data.errors import CalibrationError
from desist.data.schema import Trace
from tests.fakes.traces import make_traces

BASE: dict[str, Any] = {"alpha": 0.1, "delta": 0.1, "loss": "consistency", "forbidden_problems": ()}


def sized(sizes: dict[str, int], seed: int = 1) -> list[Trace]:
    """Traces of datasets, so many of each."""
    names = [name for name, n in sizes.items() for _ in range(n)]
    return [replace(t, dataset=name) for t, name in zip(make_traces(len(names), seed), names, strict=True)]


def certified(found: CannotCertify | Certificate) -> Certificate:
    assert isinstance(found, Certificate)
    return found


def refused(found: CannotCertify | Certificate) -> CannotCertify:
    assert isinstance(found, CannotCertify)
    return found


def test_small_groups_get_no_share_of_delta_and_stay_in_shadow() -> None:
    found = calibrate_groups(sized({"a": 200, "b": 150, "c": 20}), by="dataset", **BASE)
    assert sorted(found) == ["a", "b", "c"]
    for name in "ab":
        one = certified(found[name])
        assert (one.delta, one.n_groups, one.group, one.group_by) == (Fraction(1, 20), 2, name, "dataset")
        assert "of group" in one.text
        assert "2 groups (by dataset) hold together with probability at least 90 %" in one.text
    small = refused(found["c"])
    # To be calibrated as well, the third group would need what a third of delta asks for.
    assert (small.reason, small.n, small.needed_n) == (
        "too_few",
        20,
        smallest_n(exact("0.1"), Fraction(1, 30)),
    )


def test_a_group_is_calibrated_as_its_own_problems_alone_would_be() -> None:
    traces = sized({"a": 200, "b": 150})
    found = calibrate_groups(traces, by="dataset", delta_split="each", **BASE)
    for name in "ab":
        alone = certified(calibrate([t for t in traces if t.dataset == name], **BASE))
        one = certified(found[name])
        assert (one.lam, one.n, one.n_bad, one.delta) == (alone.lam, alone.n, alone.n_bad, alone.delta)
        assert "hold one at a time, each with the probability said, not together" in one.text


def test_small_groups_may_be_one_group_together() -> None:
    sizes = {"a": 300, "b": 20, "c": 18}
    found = calibrate_groups(sized(sizes), by="dataset", small="rest", **BASE)
    assert sorted(found) == [REST, "a"]
    rest = found[REST]
    assert rest.n == 38
    assert rest.group_rule is not None
    assert rest.group_rule.pooled == ("b", "c")
    assert rest.delta == Fraction(1, 20)
    rule = certified(found["a"]).group_rule
    assert rule is not None
    assert rule.pooled == ()
    # Too small even together: they stay in shadow one by one, and cost the others nothing.
    less = calibrate_groups(sized(sizes | {"b": 3, "c": 2}), by="dataset", small="rest", **BASE)
    assert sorted(less) == ["a", "b", "c"]
    assert certified(less["a"]).delta == Fraction(1, 10)


def test_a_minimum_holds_beside_what_the_levels_need() -> None:
    found = calibrate_groups(sized({"a": 200, "b": 150}), by="dataset", minimum=160, **BASE)
    assert certified(found["a"]).n_groups == 1
    assert "the only group (by dataset)" in certified(found["a"]).text
    assert refused(found["b"]).needed_n == 160


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.sampled_from(["shadow", "rest"]))
def test_which_groups_are_calibrated_rests_on_their_sizes(sizes: Sequence[int], small: Any) -> None:
    """As many as can be, each with problems enough for its share; and nothing is lost on the way."""
    traces = [
        replace(_PLAIN, problem_id=f"{group}-{k}", trace_id=f"{group}-{k}", dataset=f"d{group:02}")
        for group, n in enumerate(sizes) for k in range(n)
    ]  # fmt: skip
    groups = form_groups(traces, by="dataset", small=small, **BASE)
    count = len(groups.calibrated)
    assert groups.share == Fraction(1, 10) / max(1, count)
    least = smallest_n(exact("0.1"), groups.share)
    assert all(len(own) >= least for own in groups.calibrated.values())
    assert sum(map(len, (*groups.calibrated.values(), *groups.small.values()))) == len(traces)
    if small == "shadow":
        after = sorted(sizes, reverse=True)[count : count + 1]
        assert all(n < smallest_n(exact("0.1"), Fraction(1, 10) / (count + 1)) for n in after)
        assert groups.needed == smallest_n(exact("0.1"), Fraction(1, 10) / (count + 1))
    else:
        assert bool(groups.pooled) == (REST in groups.calibrated)


_PLAIN = Trace("t", "p", "m", "", "", "", 10, 2)


def test_a_method_without_a_delta_has_no_joint_statement() -> None:
    traces = sized({"a": 100, "b": 100})
    with pytest.raises(CalibrationError, match="no delta that groups could share"):
        calibrate_groups(traces, by="dataset", method="crc", delta_split="joint", **BASE)
    found = certified(calibrate_groups(traces, by="dataset", method="crc", **BASE)["a"])
    assert found.delta_split == "each"
    assert "hold one at a time, each by itself" in found.text


def test_products_of_keys() -> None:
    traces = [
        replace(t, problem=("How many is" if k % 2 else "Wie viele sind") + f" {k}?", model="m;1%")
        for k, t in enumerate(sized({"a": 100, "b": 100}))
    ]
    groups = form_groups(traces, by="dataset,language,model", **BASE)
    assert {name: len(own) for name, own in groups.calibrated.items()} == {
        f"dataset={dataset};language={language};model=m%3B1%25": 50
        for dataset in "ab" for language in ("english", "german")
    }  # fmt: skip
    assert groups.rule.language == "prompt"


def test_lengths_in_tokens_where_traces_tell_them_else_in_characters() -> None:
    base = sized({"a": 120})
    long = [replace(t, problem=f"{k} " + "x" * (0 if k % 2 else 500)) for k, t in enumerate(base)]
    assert sorted(form_groups(long, by="prompt-length", **BASE).calibrated) == [
        "400-1999 characters", "<400 characters",
    ]  # fmt: skip
    told = [replace(t, provenance={"prompt_tokens": 90 + k}) for k, t in enumerate(long)]
    groups = form_groups(told, by="prompt-length", edges=(150,), **BASE)
    assert {name: len(own) for name, own in groups.calibrated.items()} == {
        "<150 tokens": 60,
        ">=150 tokens": 60,
    }
    assert (groups.rule.unit, groups.rule.edges) == ("tokens", (150,))
    with pytest.raises(CalibrationError, match=r"1 of 120 traces have no provenance.prompt_tokens"):
        form_groups([*told[1:], long[0]], by="prompt-length", **BASE)
    with pytest.raises(CalibrationError, match="Write a whole number"):
        form_groups([replace(long[0], provenance={"prompt_tokens": "9"})], by="prompt-length", **BASE)


@pytest.mark.parametrize(
    ("by", "more", "match"),
    [
        ("answer", {}, "unknown grouping 'answer'. Choose from group, model, dataset"),
        ("dataset,", {}, "unknown grouping ''"),
        ("dataset,dataset", {}, "Name each key once"),
        ("group", {}, "2 of 2 traces have no group, trace .* is the first: write `group`"),
        ("dataset", {"edges": (5,)}, "Add the key prompt-length"),
        ("prompt-length", {"edges": (5, 5)}, "rising numbers"),
        ("prompt-length", {"edges": ()}, "rising numbers"),
        ("dataset", {"minimum": 0}, "minimum is 0"),
    ],
)
def test_what_is_refused_and_how(by: str, more: dict[str, Any], match: str) -> None:
    with pytest.raises(CalibrationError, match=match):
        form_groups([replace(t, problem="p") for t in sized({"a": 2})], by=by, **more, **BASE)


def test_no_traces_no_groups() -> None:
    with pytest.raises(CalibrationError, match="no traces"):
        calibrate_groups([], by="dataset", **BASE)


def test_a_language_is_told_by_all_traces_or_by_none() -> None:
    traces = [replace(t, problem="Wie viele?") for t in sized({"a": 2})]
    told = [replace(t, provenance={"language": "de"}) for t in traces]
    assert rule_for("language", told).language == "declared"
    assert rule_for("language", told).name(known_of(told[0])) == "de"
    assert rule_for("language", traces).name(known_of(told[0])) == "german"
    with pytest.raises(CalibrationError, match=r"provenance\.language"):
        rule_for("language", [told[0], traces[1]])


def test_what_is_not_known_gives_no_group() -> None:
    rule = GroupRule(by=("dataset", "language"), language="prompt")
    assert rule.name(Known(prompt="How many is it?")) is None
    assert rule.lacks(Known(prompt="How many is it?")) == ("dataset",)
    assert rule.lacks(Known()) == ("dataset", "language")


def test_a_request_in_messages_gets_the_group_of_the_same_problem_in_a_trace() -> None:
    messages = (
        {"role": "system", "content": "You are a helpful assistant of the city."},
        {"role": "user", "content": [{"type": "text", "text": x} for x in ("Wie viele ", "sind es?")]},
    )
    rule = GroupRule(by=("language", "prompt-length"), language="prompt", unit="characters", edges=(30,))
    trace = replace(_PLAIN, problem="Wie viele sind es?")
    assert rule.name(Known(prompt=messages_text(messages))) == rule.name(known_of(trace))
    assert rule.name(known_of(replace(trace, problem="", prompt=messages))) == rule.name(known_of(trace))
    assert messages_text([{"role": "assistant", "content": "hello"}]) == "hello"


@pytest.mark.parametrize(
    ("text", "script", "language"),
    [
        ("What is 2 + 2?", "latin", "english"),
        ("Was ist die Summe von 2 und 3?", "latin", "german"),
        ("Quelle est la somme des deux nombres ?", "latin", "french"),
        ("¿Cuántos son dos y dos en el total?", "latin", "spanish"),
        ("Qual é a soma dos números?", "latin", "portuguese"),
        ("Сколько будет 2 + 2? Найдите это число", "cyrillic", "russian"),
        ("二加二等于几", "han", "chinese"),
        ("二たす二はいくつですか", "japanese", "japanese"),
        ("둘 더하기 둘은?", "hangul", "korean"),
        ("x = 4y + sin(z)", "latin", "latin"),
        ("2 + 2 = ?", "none", "none"),
    ],
)
def test_scripts_and_languages(text: str, script: str, language: str) -> None:
    assert (script_of(text), language_of(text)) == (script, language)


@given(st.text())
def test_every_text_has_one_language(text: str) -> None:
    assert language_of(text) == language_of(text) != ""


def test_length_bands() -> None:
    assert [length_band(n, (400, 2000)) for n in (0, 399, 400, 1999, 2000)] == [
        "<400", "<400", "400-1999", "400-1999", ">=2000",
    ]  # fmt: skip


def test_a_rule_survives_the_file(tmp_path: Any) -> None:
    from desist.calibration import load_certificate

    traces = [replace(t, problem=f"Wie viele sind {k}?") for k, t in enumerate(sized({"a": 200}))]
    found = certified(calibrate_groups(traces, by="language,prompt-length", **BASE)[
        "language=german;prompt-length=<400 characters"
    ])  # fmt: skip
    again = load_certificate(found.save(tmp_path / "certificate.json"))
    assert (again.group_rule, again.group) == (found.group_rule, found.group)
    assert again.group_rule is not None
    assert again.group_rule.name(known_of(traces[3])) == again.group


def test_certificates_without_groups_are_written_as_before() -> None:
    assert "group_rule" not in certified(calibrate(sized({"a": 200}), **BASE)).model_dump()
