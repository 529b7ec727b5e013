"""An answer that the model does not give by itself is asked for: before the stand-in, and on real vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.model import read_model
from tests.fakes.own_vllm import PROBLEMS, SCHEMA, Served
from tests.fakes.server import HTTP
from tests.fakes.vllm_server import ANSWER, THOUGHTS
from tests.proxy.engines.vllm.beside.test_engine import SENTENCE, Stack, ask, texts

LIMITED: dict[str, Any] = {"desist": {"mode": "off", "budget": 300, "object": True}}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ExitStack() as servers:
        yield Stack(servers)


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if "stack" in request.fixturenames:
        fake = request.getfixturevalue("stack").fake
        fake.bodies, fake.script, fake.after_stop = [], THOUGHTS + END, ANSWER + END


def test_R26_a_turn_that_ends_in_thinking_gets_its_answer(stack: Stack) -> None:
    reply = ask(stack.base, max_tokens=400, seed=7, stop=["never"], **LIMITED)
    assert texts(reply) == (THOUGHTS + SENTENCE.rstrip(), ANSWER)
    first, second = stack.fake.bodies
    encode = stack.fake.facts.vocabulary.encode
    thought, handoff = encode(THOUGHTS), encode(SENTENCE + "</think>\n\n")
    prompt = second["prompt"]
    assert tuple(prompt[-len(handoff) :]) == handoff
    assert tuple(prompt[: -len(handoff)]) == (*stack.fake.facts.chat_ids(tuple(first["messages"])), *thought)
    assert (second["seed"], second["stop"], second["min_tokens"]) == (7, ["never"], 1)
    assert second["max_tokens"] == 400 - len(thought) - 1 - len(handoff)
    assert "vllm_xargs" not in second
    told, usage = reply["desist"], reply["usage"]
    assert (told["stop_reason"], told["forced_tokens"]) == ("natural", len(handoff))
    assert told["reasoning_tokens"] == len(thought)
    answer = len(encode(ANSWER + END))
    assert usage["completion_tokens"] == len(thought) + 1 + len(handoff) + answer
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_R26_it_streams_in_order_and_ends_once(stack: Stack) -> None:
    body = {"messages": [{"role": "user", "content": "5 + 7?"}], "stream": True, **LIMITED}
    lines = HTTP.post(f"{stack.base}/v1/chat/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    kinds = [next(iter(c["delta"].keys() & {"reasoning", "content"}), None) for c in choices]
    kinds = [kind for kind, choice in zip(kinds, choices, strict=True) if kind and choice["delta"][kind]]
    assert kinds == sorted(kinds, reverse=True)  # reasoning, then content
    assert "".join(c["delta"].get("content") or "" for c in choices) == ANSWER
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]


def test_R26_an_end_right_after_thinking_is_gone_on_from(stack: Stack) -> None:
    stack.fake.script = f"{THOUGHTS}\n</think>\n\n{END}"
    reply = ask(stack.base, **LIMITED)
    assert texts(reply)[1].strip() == ANSWER
    assert SENTENCE.strip() not in texts(reply)[0]
    assert stack.fake.facts.vocabulary.encode("</think>\n\n") == tuple(stack.fake.bodies[1]["prompt"][-2:])


@pytest.mark.parametrize(
    "asked",
    [
        {"desist": {"mode": "shadow"}},
        {**LIMITED, "max_tokens": 60},  # a budget fires before the end
    ],
)
def test_what_was_not_to_be_controlled_or_has_an_answer_ends_as_it_did(stack: Stack, asked: Any) -> None:
    ask(stack.base, **asked)
    assert len(stack.fake.bodies) == 1


def test_what_cannot_be_asked_for_is_told() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    with ExitStack() as servers:
        parsing = Stack(servers, parser=True, names="theirs", script=THOUGHTS + END)
        reply = ask(parsing.base, **LIMITED, tools=tools, tool_choice="required")
        assert len(parsing.fake.bodies) == 1
    assert "one of several tools" in reply["desist"]["uncontrolled"]


def test_the_bare_tag_where_the_sentence_leaves_no_room(stack: Stack) -> None:
    n = len(stack.fake.facts.vocabulary.encode(THOUGHTS + END))
    stack.fake.runtime.min_answer_tokens = 1
    asked = {"desist": {"mode": "off", "budget": 300}, "max_tokens": n + 4}
    reply = ask(stack.base, **asked)
    assert len(stack.fake.bodies) <= 2
    assert texts(reply)[1]
    assert reply["usage"]["completion_tokens"] <= n + 4


@pytest.fixture(scope="module")
def end() -> int:
    (found,) = read_model(builtin_model(), dtype="float32", weights=False).vocabulary.encode(END)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bias", [100.0, 14.0, 11.0])
def test_R26_vllm_ends_the_turn_in_thinking_and_the_answer_is_not_empty(
    served: Served, end: int, bias: float
) -> None:
    """At the first token, and somewhere in thinking."""
    early = 0
    for problem in PROBLEMS[:6]:
        asked: dict[str, Any] = {"logit_bias": {str(end): bias}, "temperature": 0, "max_tokens": 300}
        plain = served.ask(problem, desist={"mode": "off"}, **asked)["choices"][0]
        early += not (plain["message"]["content"] or "").strip()
        for control in ({"mode": "active", "threshold": 1.0}, {"mode": "off", "budget": 200}):
            reply = served.ask(problem, desist={**control, "object": True}, logprobs=True, **asked)
            (choice,) = reply["choices"]
            assert choice["message"]["content"], (control, reply)
            assert choice["finish_reason"] == "stop"
            assert "think>" not in choice["message"]["content"] + (choice["message"]["reasoning"] or "")
            assert reply["usage"]["completion_tokens"] <= 300
            told = [entry["token"] for entry in choice["logprobs"]["content"]]
            assert choice["message"]["content"].strip() in "".join(told)
            assert reply["desist"]["uncontrolled"] is None
    assert early >= 1


@pytest.mark.slow
def test_R26_a_schema_and_a_named_tool_bind_the_answer_that_was_owed(served: Served, end: int) -> None:
    bias = {"logit_bias": {str(end): 100.0}, "max_tokens": 400, "desist": {"budget": 200}}
    reply = served.ask(PROBLEMS[0], response_format=SCHEMA, **bias)
    assert 0 <= json.loads(reply["choices"][0]["message"]["content"])["n"] <= 99
    function = {"name": "total", "parameters": SCHEMA["json_schema"]["schema"]}
    asked = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    choice = served.ask(PROBLEMS[0], **asked, **bias)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "total"
    assert 0 <= json.loads(call["function"]["arguments"])["n"] <= 99
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [2, 3, 5, 12])
def test_R26_small_limits_and_no_budget_at_all(served: Served, max_tokens: int) -> None:
    for asked in ({"mode": "active"}, {"mode": "off", "budget": 0}, {"mode": "active", "budget": 1}):
        reply = served.ask(PROBLEMS[1], max_tokens=max_tokens, temperature=0, desist=asked)
        (choice,) = reply["choices"]
        # The tag and a token of the answer, which is the line end before it where there is no more.
        assert choice["message"]["content"] or (max_tokens, choice["finish_reason"]) == (2, "length"), reply
        assert reply["usage"]["completion_tokens"] <= max_tokens
