"""Every field by the same rule: all aliases and headers times all values; every refusal names it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.controls_table import main as controls_table
from desist.data.schema import Sampling
from desist.proxy.control import ControlResolver, Resolved
from desist.proxy.controls.aliases import ALIASES, CONTAINERS, OWN
from desist.proxy.controls.misplaced import misplaced
from desist.proxy.controls.onward import onward, without_budgets
from desist.proxy.errors import ApiError, validation_error
from desist.proxy.intake.schemas import DesistField
from desist.proxy.settings import ControlSettings

BUDGETS = [alias.name for alias in ALIASES if alias.kind == "budget"] + ["desist.budget"]
EFFORTS = [alias.name for alias in ALIASES if alias.kind == "effort"] + ["desist.effort", "think"]
SWITCHES = [alias.name for alias in ALIASES if alias.kind == "switch"]


def nested(name: str, value: Any) -> dict[str, Any]:
    """A body in which the field `name` has `value`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def resolve(body: dict[str, Any], headers: dict[str, str] | None = None, **defaults: Any) -> Resolved:
    """As the intake does it: the `desist` object is checked first."""
    try:
        own = DesistField.model_validate(body.get("desist") or {}).said()
    except ValidationError as error:
        raise validation_error(error, within="desist") from error
    return ControlResolver(ControlSettings(**defaults)).resolve(body, own, headers or {}, Sampling())


def refused(body: dict[str, Any], headers: dict[str, str] | None = None, **defaults: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        resolve(body, headers, **defaults)
    return caught.value


@pytest.mark.parametrize("name", BUDGETS)
def test_R06_R07_one_meaning_of_a_budget_through_every_alias(name: str) -> None:
    assert resolve(nested(name, 0), budget=70).control.budget == 0
    assert resolve(nested(name, 12), budget=70).control.budget == 12
    assert resolve(nested(name, 1_000_000_000), budget=70).control.budget == 1_000_000_000
    assert resolve(nested(name, -1), budget=70).control.budget is None
    assert resolve(nested(name, None)).control.budget is None
    assert resolve({}).control.budget is None
    assert (
        resolve(nested(name, None), budget=70).control.budget == resolve({}, budget=70).control.budget == 70
    )
    assert resolve(nested(name, 12)).budget_by == name
    bad: Any
    for bad in (-2, -5, True, False, "12", "", 12.5, 1e9, [], {}, 2**63):
        error = refused(nested(name, bad))
        assert (error.status, error.param) == (400, name)
        assert "-1 means no limit" in str(error)


@given(
    st.sampled_from(BUDGETS),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.lists(st.none()),
    ),
)
def test_a_budget_is_a_whole_number_or_refused(name: str, value: Any) -> None:
    good = value is None or (type(value) is int and -1 <= value < 2**63)
    if good:
        expected = None if value in (None, -1) else value
        assert resolve(nested(name, value)).control.budget == expected
    else:
        assert refused(nested(name, value)).param == name


@given(st.text(max_size=12))
def test_a_budget_header_is_digits_or_refused(text: str) -> None:
    try:
        number = int(text) if text.isascii() and "_" not in text and "+" not in text else None
    except ValueError:
        number = None
    if number is not None and -1 <= number < 2**63:
        assert resolve({}, {"x-desist-budget": text}).control.budget == (None if number == -1 else number)
    else:
        error = refused({}, {"x-desist-budget": text})
        assert (error.status, error.param) == (400, "x-desist-budget")


@given(st.dictionaries(st.sampled_from(BUDGETS), st.integers(-1, 50), max_size=6))
def test_R77_the_smallest_budget_holds_and_is_named(said: dict[str, int]) -> None:
    body: dict[str, Any] = {}
    for name, value in said.items():
        outer, _, inner = name.partition(".")
        if inner:
            body.setdefault(outer, {})[inner] = value
        else:
            body[outer] = value
    made = resolve(body, budget=70)
    limits = [value for value in said.values() if value >= 0]
    assert made.control.budget == (min(limits) if limits else None if said else 70)
    if limits:
        assert said[str(made.budget_by)] == min(limits)
        assert bool(made.notices) == (len(set(limits)) > 1)


@pytest.mark.parametrize("name", EFFORTS)
def test_R44_an_effort_is_a_budget_through_every_alias(name: str) -> None:
    sizes = {"none": 0, "low": 100, "high": None}
    assert resolve(nested(name, "low"), efforts=sizes, budget=70).control.budget == 100
    assert resolve(nested(name, "none"), efforts=sizes, budget=70).control.budget == 0
    assert resolve(nested(name, "high"), efforts=sizes, budget=70).control.budget is None
    assert resolve(nested(name, None), efforts=sizes, budget=70).control.budget == 70
    assert resolve(nested(name, "low"), efforts=sizes).budget_by == name
    both = nested(name, "low")
    both["thinking_token_budget"] = 500
    assert resolve(both, efforts=sizes).control.budget == 500
    bad: Any
    for bad in ("ultra", "", 5, [], {}):
        error = refused(nested(name, bad), efforts=sizes)
        assert (error.status, error.param) == (400, name)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name: str) -> None:
    on, off = ("enabled", "disabled") if name == "thinking.type" else (True, False)
    assert resolve(nested(name, on), budget=70).control.budget == 70
    made = resolve(nested(name, off))
    assert made.asked.off is not None
    assert made.asked.off.by == name
    assert made.control.budget == (None if name.startswith("chat_template_kwargs") else 0)
    bad: Any
    for bad in (0, 1, [], {}) if name == "think" else ("false", 0, 1, [], {}):
        error = refused(nested(name, bad))
        assert (error.status, error.param) == (400, name)


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("value", ["x", 5, True, []])
def test_objects_are_objects(name: str, value: Any) -> None:
    assert refused({name: value}).param == name


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("chat_template_kwargs.thinking_token_budget", "thinking_token_budget"),
        ("chat_template_kwargs.budget_tokens", "thinking.budget_tokens"),
        ("extra_body.thinking_token_budget", "thinking_token_budget"),
        ("extra_body.nvext.max_thinking_tokens", "nvext.max_thinking_tokens"),
        ("vllm_xargs.max_thinking_tokens", "nvext.max_thinking_tokens"),
        ("extra_args.thinking_token_budget", "thinking_token_budget"),
        ("sampling_params.thinking_token_budget", "thinking_token_budget"),
        ("reasoning.budget_tokens", "thinking.budget_tokens"),
        ("reasoning.thinking_budget", "thinking_budget"),
        ("thinking.budget", "thinking_token_budget"),
        ("thinking.max_tokens", "reasoning.max_tokens"),
        ("thinking.max_thinking_tokens", "nvext.max_thinking_tokens"),
        ("budget_tokens", "thinking.budget_tokens"),
        ("max_thinking_tokens", "nvext.max_thinking_tokens"),
        ("max_reasoning_tokens", "thinking_token_budget"),
        ("thinkingBudget", "thinkingConfig.thinkingBudget"),
        ("reasoning.maxTokens", "thinking_token_budget"),
        ("thinking.max", "thinking_token_budget"),
        ("max_reasoning_length", "thinking_token_budget"),
        ("reasoning_config.max_tokens", "reasoning.max_tokens"),
        ("thinking_options.budget", "thinking_token_budget"),
        ("google.thinking_config.thinking_budget", "thinking_budget"),
        ("extra_body.google.thinking_config.thinking_budget", "thinking_budget"),
        ("generationConfig.thinkingConfig.thinkingBudget", "thinkingConfig.thinkingBudget"),
        ("provider_options.anthropic.thinking.budget_tokens", "thinking.budget_tokens"),
        ("kwargs.thinking_token_budget", "thinking_token_budget"),
        ("sampling_params.extra_args.thinking_token_budget", "thinking_token_budget"),
    ],
)
def test_R05_R71_a_budget_without_effect_is_refused_with_its_right_place(path: str, right: str) -> None:
    error = refused(nested(path, 10))
    assert (error.status, error.param) == (400, path)
    assert f"or {right} in the body" in str(error)


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize("outer", ["extra_body", "vllm_xargs", "extra_args", "sampling_params"])
def test_R05_no_alias_is_lost_in_a_free_form_object(outer: str, name: str) -> None:
    assert refused({outer: nested(name, 10)}).code == "misplaced_field"


@pytest.mark.parametrize(
    "body",
    [
        {"return_token_ids": True, "max_tokens": 5, "max_completion_tokens": 5, "min_tokens": 1},
        {
            "reasoning_budget_message": "x",
            "reasoning_budget_start_tag": "<t>",
            "reasoning_budget_end_tags": [],
        },
        {"chat_template_kwargs": {"enable_thinking": True, "preserve_thinking": True}},
        {"metadata": {"thinking_token_budget": "no control"}, "user": "u", "think_stop_sentence": "x"},
        {"stop_token_ids": [1], "truncate_prompt_tokens": 5, "prompt_logprobs": 1, "reasoning_control": True},
        {"include_reasoning_tokens": True, "budget": 5, "token_budget": 5, "reasoning_limit": None},
        {"vllm_xargs": {"mine": 1}, "sampling_params": {"max_tokens": 5}, "options": {"num_ctx": 1}},
        {"tools": [{"thinking_budget": 1}], "response_format": {"schema": {"thinking_budget": 5}}},
        {"extra_body": {"guided_json": {"properties": {"thinking_budget": 5}}, "cost": {"budget": 5}}},
        {"limits": {"budget": 5, "max_tokens": 5}, "usage_details": {"output_tokens_details": {"tokens": 1}}},
        {"reasoning_details": {"tokens": 5}, "a": {"b": {"c": {"d": {"e": {"thinking_budget": 1}}}}}},
    ],
)
def test_other_fields_pass(body: dict[str, Any]) -> None:
    assert misplaced(body) is None
    assert onward(body, {"high": "low"}, shown_here=True) == body
    assert without_budgets(body) == body


def test_headers_of_ours_are_known_or_refused() -> None:
    for own in OWN:
        assert refused({}, {own.header: "?"}).param == own.header
    error = refused({}, {"x-desist-buget": "5"})
    assert (error.status, error.param) == (400, "x-desist-buget")
    assert "Did you mean x-desist-budget?" in str(error)
    assert resolve({}, {"x-desist-timeout": "5", "x-other": "y"}).control.budget is None
    made = resolve({}, {"X-Desist-Budget": " 5 ", "x-desist-mode": "Shadow", "x-desist-object": "off"})
    assert (made.control.budget, made.control.mode, made.asked.object) == (5, "shadow", False)


def test_the_object_before_the_header() -> None:
    made = resolve(
        {"desist": {"budget": 50, "mode": "off"}}, {"x-desist-budget": "9", "x-desist-mode": "active"}
    )
    assert (made.control.budget, made.control.mode, made.budget_by) == (50, "off", "desist.budget")
    made = resolve({"thinking_token_budget": 60}, {"x-desist-budget": "100"})
    assert (made.control.budget, made.budget_by) == (60, "thinking_token_budget")
    assert resolve({"reasoning_effort": "low"}, {"x-desist-effort": "minimal"}).control.budget == 128


@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "thinking_token_budget", "thinking", "reasoning", "nvext", "extra_body", "stop"]
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
            lambda inner: st.dictionaries(
                st.sampled_from(["effort", "max_tokens", "type", "budget_tokens", "enabled", "exclude", "x"]),
                inner,
            ),
            max_leaves=4,
        ),
    )
)
def test_any_body_is_resolved_or_refused_by_name(body: dict[str, Any]) -> None:
    try:
        resolve(body)
    except ApiError as error:
        named, status = error.param, error.status
    else:
        named, status = "", 400
    assert (status, named is None) == (400, False)
    if named:
        return
    assert resolve(without_budgets(body)).asked.budgets == ()
    assert onward(body, {}, shown_here=False) == body


def test_what_is_not_sent_on() -> None:
    body = {
        "thinking": {"type": "enabled", "budget_tokens": 5}, "nvext": {"max_thinking_tokens": 5, "other": 1},
        "reasoning": {"max_tokens": 5, "effort": "high", "exclude": True}, "thinking_budget": 5,
        "include_reasoning": False, "reasoning_effort": "xhigh",
        "chat_template_kwargs": {"thinking_budget": 5},
    }  # fmt: skip
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in body.items()}
    assert without_budgets(body) == {
        "nvext": {"other": 1},
        "reasoning": {"effort": "high", "exclude": True},
        "include_reasoning": False,
        "reasoning_effort": "xhigh",
        "chat_template_kwargs": {"thinking_budget": 5},
    }
    sent = onward(body, {"xhigh": "high", "high": None}, shown_here=True)
    assert sent["reasoning_effort"] == "high"
    assert sent["reasoning"] == {"max_tokens": 5}
    assert "include_reasoning" not in sent
    assert body == kept  # the client's own body is not touched


def test_the_page_is_current() -> None:
    """docs/controls.md: `python -m benchmarks.controls_table --write` makes its tables."""
    assert controls_table(["--check"]) == 0
