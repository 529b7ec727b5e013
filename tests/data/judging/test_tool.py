"""The judge `tool`: the same calls in any of the shapes and markups, and no call passed over."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.judging import Case, get_judge, right_answer, same_answer

ARGUMENTS = {"city": "Bonn", "days": 3, "deep": {"units": ["c", "k"], "wind": None}}
TEXT = json.dumps(ARGUMENTS)
DEEP = json.dumps(ARGUMENTS["deep"])
SPACED = json.dumps(ARGUMENTS, indent=1, sort_keys=True)
BAR = "\uff5c"


def openai(*calls: tuple[str, object]) -> str:
    return json.dumps(
        {
            "content": None,
            "tool_calls": [
                {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": given}}
                for n, (name, given) in enumerate(calls)
            ],
        }
    )


SHAPES = {
    "openai": openai(("weather", TEXT)),
    "openai, object": openai(("weather", ARGUMENTS)),
    "list of calls": json.dumps(json.loads(openai(("weather", SPACED)))["tool_calls"]),
    "response": json.dumps({"choices": [{"message": json.loads(openai(("weather", TEXT)))}]}),
    "function_call": json.dumps({"function_call": {"name": "weather", "arguments": TEXT}}),
    "responses api": json.dumps(
        {"output": [{"type": "reasoning"}, {"type": "function_call", "name": "weather", "arguments": TEXT}]}
    ),
    "anthropic": json.dumps(
        {
            "content": [
                {"type": "text", "text": "."},
                {"type": "tool_use", "name": "weather", "input": ARGUMENTS},
            ]
        }
    ),
    "bare": json.dumps({"name": "weather", "parameters": ARGUMENTS}),
    "bare in a fence": f'I call:\n```json\n{{"name": "weather", "arguments": {SPACED}}}\n```',
    "hermes": f'Let me look.\n<tool_call>\n{{"name": "weather", "arguments": {TEXT}}}\n</tool_call>',
    "hermes, unclosed": f'<tool_call>{{"name": "weather", "arguments": {TEXT}}}',
    "coder": "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=days>\n3\n"
    f"</parameter>\n<parameter=deep>\n{DEEP}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
    f"<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>deep</arg_key><arg_value>{DEEP}</arg_value></tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bonn</parameter>\n'
    f'<parameter name="days">3</parameter>\n<parameter name="deep">{DEEP}</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "dsml": f'<{BAR}DSML{BAR}function_calls><{BAR}DSML{BAR}invoke name="weather">'
    f'<{BAR}DSML{BAR}parameter name="city" string="true">Bonn</{BAR}DSML{BAR}parameter>'
    f'<{BAR}DSML{BAR}parameter name="days" string="false">3</{BAR}DSML{BAR}parameter>'
    f'<{BAR}DSML{BAR}parameter name="deep" string="false">{DEEP}</{BAR}DSML{BAR}parameter>'
    f"</{BAR}DSML{BAR}invoke></{BAR}DSML{BAR}function_calls>",
    "mistral": f'[TOOL_CALLS] [{{"name": "weather", "arguments": {TEXT}}}]',
    "mistral, newer": f"[TOOL_CALLS]weather[ARGS]{TEXT}",
    "nemotron": f'<TOOLCALL>[{{"name": "weather", "arguments": {TEXT}}}]</TOOLCALL>',
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {TEXT}}}]',
    "deepseek r1": f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>"
    f"weather\n```json\n{TEXT}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    "deepseek v3.1": f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>weather"
    f"<{BAR}tool▁sep{BAR}>{TEXT}<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    f"{TEXT}<|tool_call_end|><|tool_calls_section_end|>",
}


def outcome(a: str, b: str) -> str:
    judge = get_judge("tool")
    there, back = same_answer(judge, a, b, Case()), same_answer(judge, b, a, Case())
    assert there == back
    return there.outcome


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_is_the_same_in_every_shape_and_another_one_is_not(shape: str) -> None:
    found = SHAPES[shape]
    for other in SHAPES.values():
        assert outcome(found, other) == "equal", other
    assert outcome(found, openai(("weather", {**ARGUMENTS, "days": 4}))) == "different"
    assert outcome(found, openai(("weather", {**ARGUMENTS, "more": 1}))) == "different"
    assert outcome(found, openai(("climate", TEXT))) == "different"
    assert outcome(found, openai(("weather", TEXT), ("weather", TEXT))) == "different"
    assert outcome(found, "It will rain.") == "different"
    verdict = right_answer(get_judge("tool"), found, Case("", SHAPES["bare"]))
    assert verdict is not None
    assert verdict.same


def test_calls_made_at_once_have_no_order_but_their_number_counts() -> None:
    a, b = ("f", {"x": 1}), ("g", {"x": 2})
    assert outcome(openai(a, b), openai(b, a)) == "equal"
    assert outcome(openai(a, a, b), openai(b, a, a)) == "equal"
    assert outcome(openai(a, a, b), openai(a, b, b)) == "different"
    one = '<tool_call>{"name": "%s", "arguments": {"x": %d}}</tool_call>'
    hermes = one % ("f", 1) + one % ("g", 2)
    assert outcome(hermes, openai(b, a)) == "equal"


def test_no_arguments_are_empty_arguments() -> None:
    for nothing in ("", "{}", {}, None, "null"):
        assert (
            outcome(openai(("f", nothing)), '<tool_call>{"name": "f", "arguments": {}}</tool_call>')
            == "equal"
        )


def test_a_text_parameter_is_what_its_schema_would_make_of_it() -> None:
    def coder(text: str) -> str:
        return f"<tool_call><function=f><parameter=x>{text}</parameter></function></tool_call>"

    assert outcome(coder("01234"), openai(("f", {"x": "01234"}))) == "equal"
    assert outcome(coder("5"), openai(("f", {"x": 5}))) == "equal"
    assert outcome(coder("5"), openai(("f", {"x": "5"}))) == "equal"
    assert outcome(coder("5"), coder("5.0")) == "equal"
    assert outcome(coder("5"), openai(("f", {"x": 6}))) == "different"


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>{"name": "weather", "arguments": {"city"',
        "<tool_call>what now?</tool_call>",
        openai(("weather", "{not json")),
        openai(("weather", '{"a": 1, "a": 2}')),
        openai(("weather", '{"a": NaN}')),
        SHAPES["kimi"] + "<|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{",
        SHAPES["minimax"].replace("</parameter>\n</invoke>", "</invoke>"),
        SHAPES["coder"].replace("</parameter>\n</function>", "</function>"),
        SHAPES["minimax"] + '<invoke name="weather"><parameter name="city">Bo',
        '<|tool_call>call:weather{city:<|"|>Bonn<|"|>}<tool_call|>',
        "[TOOL_CALLS] weather",
        "x" * 300_000,
    ],
)
def test_a_call_that_cannot_be_read_is_unjudgeable(broken: str) -> None:
    assert outcome(broken, SHAPES["openai"]) == "unjudgeable"


def test_answers_without_calls_are_not_called_the_same() -> None:
    assert outcome("It rains.", "It is dry.") == "unjudgeable"
    assert outcome('{"name": "Ada"}', '{"name": "Grace"}') == "unjudgeable"
    assert outcome("It rains.", "It rains.") == "equal"


MARKS = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name":"f","arguments":{}}', "<function=f>", "</function>",
     "[TOOL_CALLS]", '<invoke name="f">', "</invoke>", "<arg_key>", "</arg_key>", "f", "{", "}", " ",
     f"<{BAR}tool▁call▁begin{BAR}>"]
)  # fmt: skip


@given(st.lists(MARKS, max_size=8).map("".join), st.lists(MARKS, max_size=8).map("".join))
def test_no_mixture_of_marks_raises(a: str, b: str) -> None:
    outcome(a, b)
    assert outcome(a, a) == "equal"


@pytest.mark.parametrize(
    "mark",
    ["<tool_call>", "<function=f>", '<invoke name="f">', "[TOOL_CALLS]f", "<arg_key>", "<",
     "<|tool_call_begin|>", f"<{BAR}tool▁call▁begin{BAR}>x<{BAR}tool▁sep{BAR}>",
     "<tool_call>f<arg_key>a</arg_key><arg_value>"],
)  # fmt: skip
def test_no_text_takes_long(mark: str) -> None:
    began = time.perf_counter()
    outcome(mark * (190_000 // len(mark)), SHAPES["openai"])
    assert time.perf_counter() - began < 30
