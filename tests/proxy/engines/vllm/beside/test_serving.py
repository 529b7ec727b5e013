"""`desist serve --engine vllm` on the real vLLM: the child, the plugin inside it, the proxy before it."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.own_vllm import PROBLEMS, SCHEMA, SLOW, Served
from tests.fakes.server import HTTP, wait_for


def test_the_built_in_certificates_hold_here(served: Served) -> None:
    ready = HTTP.get(f"{served.base}/readyz").json()
    assert ready["status"] == "ready"
    assert ready["certificates"][0]["name"] == "consistency-0.05"
    assert HTTP.get(f"{served.base}/v1/models").json()["data"][0]["id"] == "desist-reasoner"
    assert any("Application startup complete" in line for line in served.lines)


def test_stops_are_certified_counted_and_leave_an_answer(served: Served) -> None:
    replies = served.ask_all(PROBLEMS[:24])
    stopped = [reply for reply in replies if reply["desist"]["stop_reason"] == "probe"]
    assert len(stopped) >= 12
    for reply in replies:
        told, message = reply["desist"], reply["choices"][0]["message"]
        assert told["uncontrolled"] is None
        assert told["uncertified"] is None
        assert reply["usage"]["completion_tokens"] == told["generated_tokens"]
        assert message["content"].startswith(("The", "So", "It", "\\boxed"))
        assert "think>" not in message["reasoning"] + message["content"]
    for reply in stopped:
        told = reply["desist"]
        assert told["certified"]
        assert told["score"] > told["threshold"]
        assert told["reasoning_tokens"] == told["stop_position"]
        assert told["forced_tokens"] == 9
    assert served.metric("desist_vllm_incomplete_requests_total") == 0
    assert served.metric('desist_vllm_events_total{kind="lost"}') == 0


def test_the_proxy_s_scores_are_the_engine_s(served: Served) -> None:
    """The hidden state is streamed in float32, so that the same probe says the same in both places."""
    engine = served.engine
    found: list[tuple[float, float]] = []
    assert engine._probes is not None
    remote = engine._probes.remote
    original = remote.settle

    def settle(ward: Any, *args: Any, **kwargs: Any) -> None:
        joined = engine._connection.events._keys[ward.identity.key]
        for event in joined.scored(ward.identity):
            if event.index in ward.scores:
                found.append((event.scores["probe"], ward.scores[event.index]["candidate"]))
        original(ward, *args, **kwargs)

    remote.settle = settle  # type: ignore[method-assign]
    try:
        served.ask_all(PROBLEMS[:24], desist={"mode": "shadow"})
    finally:
        remote.settle = original  # type: ignore[method-assign]
    print(f"{len(found)} boundaries were scored on both sides in time")
    assert len(found) >= 10
    assert max(abs(here - there) for here, there in found) <= 1e-4
    assert served.metric('desist_vllm_streamed_bytes_total{dtype="float32"}') == (
        served.metric('desist_vllm_streamed_boundaries_total{dtype="float32"}') * 4 * 160 * 4
    )


def test_shadow_and_off_are_the_same_tokens(served: Served) -> None:
    for problem in PROBLEMS[:3]:
        off, shadow = (
            served.ask(problem, temperature=0, return_token_ids=True, desist={"mode": mode, "object": True})
            for mode in ("off", "shadow")
        )
        assert off["choices"][0]["token_ids"] == shadow["choices"][0]["token_ids"]
        assert off["desist"]["reasoning_tokens"] == shadow["desist"]["reasoning_tokens"]


def test_budgets_and_answer_forms(served: Served) -> None:
    budget = served.ask(PROBLEMS[0], thinking_token_budget=15, desist={"mode": "shadow"})["desist"]
    assert (budget["stop_reason"], budget["budget"]) == ("budget", 15)
    assert 15 <= budget["stop_position"] <= 16
    extract = served.ask(PROBLEMS[0], desist={"answer": "extract", "budget": 15})
    assert extract["choices"][0]["message"]["content"].endswith("}.")
    refused = SLOW.post(
        f"{served.base}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 5000},
    )
    assert refused.status_code == 400
    assert "max_model_len" in refused.json()["error"]["message"]


def test_a_schema_binds_the_answer_and_leaves_thinking_free(served: Served) -> None:
    """After the model's own close tag and after a forced one, at any budget, and without our control."""
    for asked, n, reasons in (
        ({}, 16, {"probe", "natural"}),
        ({"thinking_token_budget": 12}, 2, {"budget"}),
        ({"thinking_token_budget": 0}, 2, {"budget"}),
        ({"include_reasoning": False}, 2, {"probe", "natural"}),
        ({"desist": {"mode": "off"}}, 2, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 2, None),
    ):
        found = set()
        for reply in served.ask_all(PROBLEMS[:n], response_format=SCHEMA, max_tokens=400, **asked):
            (choice,) = reply["choices"]
            assert choice["finish_reason"] == "stop"
            assert 0 <= json.loads(choice["message"]["content"])["n"] <= 99, asked
            if reasons is not None:
                assert reply["desist"]["uncontrolled"] is None
                found.add(reply["desist"]["stop_reason"])
            shown = not any(name in str(asked) for name in ("include_reasoning", "enable_thinking"))
            assert bool(choice["message"].get("reasoning")) == shown, asked
        assert found <= (reasons or set())
        assert n < 16 or "probe" in found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "total"}}])
def test_a_call_that_is_asked_for_comes_out_as_a_call(served: Served, choice: Any) -> None:
    function = {"name": "total", "parameters": SCHEMA["json_schema"]["schema"]}
    asked = {
        "tools": [{"type": "function", "function": function}], "tool_choice": choice, "max_tokens": 400,
        "parallel_tool_calls": False,
    }  # fmt: skip
    reasons = set()
    for reply in served.ask_all(PROBLEMS[:6], **asked):
        message = reply["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "total"
        assert 0 <= json.loads(call["function"]["arguments"])["n"] <= 99
        assert message["reasoning"]
        assert not message["content"]
        reasons.add(reply["desist"]["stop_reason"])
    assert "probe" in reasons


def test_a_thousand_requests_a_third_of_which_leave_leave_nothing_behind(served: Served) -> None:
    draw = random.Random(3)

    def one(number: int) -> str:
        message = {"role": "user", "content": PROBLEMS[number % len(PROBLEMS)]}
        body = {"messages": [message], "stream": True, "seed": number}
        leave = draw.randint(1, 40) if number % 3 == 0 else None
        with SLOW.stream("POST", f"{served.base}/v1/chat/completions", json=body) as reply:
            for place, line in enumerate(reply.iter_lines()):
                if place == leave:
                    return "left"
                if '"desist"' in line:
                    assert json.loads(line[6:])["desist"]["uncontrolled"] is None
        return "answered"

    with ThreadPoolExecutor(32) as pool:
        ends = list(pool.map(one, range(1000)))
    assert ends.count("answered") + ends.count("left") == 1000
    assert ends.count("answered") >= 666  # those that never meant to leave
    assert ends.count("left") >= 150  # the others had answered before their time to leave came
    events = served.engine._connection.events
    wait_for(lambda: events.expected == 0 and not served.engine._live, 30)
    wait_for(lambda: served.plugin().startswith("0 controlled requests, 0 errors"), 30)
    assert events.lost == events.missed == events.dropped == 0
    assert served.metric("desist_requests_in_flight") == 0


def test_the_child_dies_and_is_not_started_again(served: Served) -> None:
    """Last in this module: the server is gone afterwards, and the next to ask for one waits for another."""
    child = served.engine._connection._child
    assert child is not None
    assert child.pid is not None
    os.kill(child.pid, 9)
    wait_for(lambda: child.failure is not None, 30)
    ready = HTTP.get(f"{served.base}/readyz")
    assert ready.status_code == 503
    assert "not started again" in ready.json()["reason"]
    body = {"messages": [{"role": "user", "content": "a"}]}
    reply = HTTP.post(f"{served.base}/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_error")
