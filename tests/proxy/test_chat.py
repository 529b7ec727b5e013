"""The chat route over real HTTP, with the `openai` client and a scripted engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import httpx
import openai
import pytest

from desist.controller.core import Action, Decision, Policy, StopReason
from desist.data.errors import EngineError, UpstreamError
from desist.proxy import Settings, create_app
from desist.proxy.answering.estimates import StepTable
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.base import Delta, Finished, ScoredBoundary, Usage
from desist.proxy.settings import StreamSettings
from tests.fakes.engine import FakeEngine, plain_script
from tests.fakes.server import HTTP, live_server, wait_for

POINT = OperatingPoint(
    Fraction("0.05"),
    "consistency",
    "write",
    Policy(lam=0.8, certified=True),
    "c05",
    StepTable((0, 10), (90.0, 50.0)),
)
STOP = Decision(Action.STOP, StopReason.PROBE, 12, 1, 0.93, True)
STOPPED = [
    Delta("reasoning", "Let me see. Wait"),
    Delta("content", "4."),
    Finished(
        "stop",
        StopReason.PROBE,
        Usage(7, 12, 3, handoff_tokens=6),
        STOP,
        boundaries=(ScoredBoundary(1, 12, "cue", "Wait", {"probe": 0.93}, STOP),),
    ),
]
MESSAGES: Any = [{"role": "user", "content": "2+2?"}]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def base(engine: FakeEngine) -> Iterator[str]:
    with live_server(create_app(Settings(), engine=engine, certificates=[POINT])) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(engine: FakeEngine) -> None:
    engine.__init__()  # type: ignore[misc]


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(base: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HTTP.post(f"{base}/v1/chat/completions", content=content, headers=headers)


def chunks(base: str, **body: Any) -> list[dict[str, Any]]:
    reply = post(base, {"messages": MESSAGES, "stream": True, **body})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_complete(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="fake", messages=MESSAGES)
    message: Any = reply.choices[0].message
    assert message.content == "The answer is 4."
    assert message.reasoning == message.reasoning_content == "2 and 2 make 4."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 9, 16)
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 5
    assert reply.model == "fake"
    assert reply.object == "chat.completion"


def test_stream_equals_complete(client: openai.OpenAI) -> None:
    reasoning, content, finishes, usages = "", "", [], []
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    identities = set()
    for number, chunk in enumerate(stream):
        identities.add((chunk.id, chunk.created, chunk.model))
        if chunk.usage:
            usages.append(chunk.usage)
            assert chunk.choices == []
            continue
        delta: Any = chunk.choices[0].delta
        if number == 0:
            assert delta.role == "assistant"
        assert not (getattr(delta, "reasoning", None) and delta.content)
        reasoning += getattr(delta, "reasoning", None) or ""
        content += delta.content or ""
        if chunk.choices[0].finish_reason:
            finishes.append(chunk.choices[0].finish_reason)
    assert (reasoning, content, finishes) == ("2 and 2 make 4.", "The answer is 4.", ["stop"])
    assert len(identities) == 1
    assert [usage.completion_tokens for usage in usages] == [9]


def test_usage_only_when_asked(base: str) -> None:
    assert all("usage" not in chunk for chunk in chunks(base))
    assert [chunk["usage"] for chunk in chunks(base, stream_options={"include_usage": True})][:-1] == [
        None
    ] * 6


def test_a_stop_is_told_in_body_and_headers(base: str, engine: FakeEngine) -> None:
    engine.script = STOPPED
    reply = post(base, {"messages": MESSAGES, "desist": {"alpha": 0.05}})
    told = reply.json()["desist"]
    assert told["stop_reason"] == "probe"
    assert told["stop_position"] == 12
    assert told["stop_index"] == 1
    assert told["score"] == 0.93
    assert told["threshold"] == 0.8
    assert told["alpha"] == 0.05
    assert told["certified"] is True
    assert told["saved_tokens_estimate"] == 50 - 6
    assert "never run" in told["saved_tokens_basis"]
    assert (told["generated_tokens"], told["forced_tokens"], told["rewound_tokens"]) == (21, 6, 0)
    assert reply.headers["x-desist-stop-reason"] == "probe"
    assert reply.headers["x-desist-saved-tokens-estimate"] == "44"
    assert reply.headers["x-desist-certified"] == "true"
    assert reply.headers["x-desist-mode"] == "active"
    assert reply.json()["usage"]["completion_tokens"] == 21
    control = engine.requests[0].control
    assert (control.policy.lam, control.policy.certified) == (0.8, True)


def test_the_last_chunk_tells_the_stop(base: str, engine: FakeEngine) -> None:
    engine.script = STOPPED
    told = [chunk["desist"] for chunk in chunks(base) if "desist" in chunk]
    assert [(each["stop_reason"], each["saved_tokens_estimate"]) for each in told] == [("probe", 44)]


def test_no_saving_is_claimed_without_a_stop(base: str) -> None:
    reply = post(base, {"messages": MESSAGES})
    assert reply.json()["desist"]["saved_tokens_estimate"] is None
    assert "x-desist-saved-tokens-estimate" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
def test_choices_keep_their_identity(base: str, engine: FakeEngine, stream: bool) -> None:
    engine.scripts = {
        0: [Delta("reasoning", "a"), Delta("content", "A"),
            Finished("stop", StopReason.PROBE, Usage(7, 1, 1), STOP)],
        1: [Delta("reasoning", "b"), Delta("reasoning", "b2"), Delta("content", "B"),
            Finished("length", StopReason.NATURAL, Usage(7, 2, 1))],
    }  # fmt: skip
    body = {"messages": MESSAGES, "n": 2, "seed": 5}
    texts: dict[int, list[str]] = {0: ["", ""], 1: ["", ""]}
    finish: dict[int, str] = {}
    if stream:
        got = chunks(base, n=2, seed=5, stream_options={"include_usage": True})
        usage = got[-1]["usage"]
        for chunk in got:
            for choice in chunk["choices"]:
                delta = choice["delta"]
                texts[choice["index"]][0] += delta.get("reasoning") or ""
                texts[choice["index"]][1] += delta.get("content") or ""
                if choice["finish_reason"]:
                    finish[choice["index"]] = choice["finish_reason"]
        summary = next(chunk["desist"] for chunk in reversed(got) if "desist" in chunk)
    else:
        reply = post(base, body).json()
        usage, summary = reply["usage"], reply["desist"]
        for choice in reply["choices"]:
            texts[choice["index"]] = [choice["message"]["reasoning"], choice["message"]["content"]]
            finish[choice["index"]] = choice["finish_reason"]
        assert [choice["desist"]["stop_reason"] for choice in reply["choices"]] == ["probe", "natural"]
    assert texts == {0: ["a", "A"], 1: ["bb2", "B"]}
    assert finish == {0: "stop", 1: "length"}
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 5)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 3
    assert summary["stop_reason"] is None
    assert summary["generated_tokens"] == 5
    assert [request.sampling.seed for request in engine.requests] == [5, 6]
    assert len({request.request_id for request in engine.requests}) == 2


def test_what_reaches_the_engine(base: str, engine: FakeEngine) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"}],
        "temperature": 0.6, "top_p": 0.9, "top_k": 20, "seed": 3, "stop": "END", "max_completion_tokens": 50,
        "max_tokens": 99, "chat_template_kwargs": {"enable_thinking": False}, "user": "u1", "logprobs": False,
        "desist": {"mode": "shadow", "budget": 30, "answer": "extract"},
    }  # fmt: skip
    assert post(base, body, **{"x-request-id": "abc"}).status_code == 200
    request = engine.requests[0]
    assert request.messages == ({"role": "user", "content": "hi", "name": "x"},)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.6, 0.9, 3)
    assert request.sampling.max_tokens == 50
    assert (request.top_k, request.stop) == (20, ("END",))
    assert request.template == {"enable_thinking": False}
    assert request.extra == {"user": "u1", "logprobs": False}
    assert request.request_id == "abc/0"
    assert (request.control.mode, request.control.budget, request.control.answer) == ("shadow", 30, "extract")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "not a JSON object"),
        (b"[" * 200_000, None, "JSON"),
        (b'{"messages": "\xff"}', None, "not valid JSON"),
        ({}, "messages", "'messages' is missing"),
        ({"messages": []}, "messages", "Give a non-empty list"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "'messages.0.content' is 5"),
        (
            {"messages": MESSAGES, "temperature": 9},
            "temperature",
            "'temperature' is 9: .* Give a number from 0 to 2",
        ),
        ({"messages": MESSAGES, "max_tokens": "12"}, "max_tokens", "'max_tokens' is '12'"),
        ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens", "'max_tokens' is 0"),
        ({"messages": MESSAGES, "n": True}, "n", "'n' is True"),
        ({"messages": MESSAGES, "n": 99}, "n", "99 choices .* the limit is 16"),
        ({"messages": MESSAGES, "stop": ["", "a"]}, "stop", "'stop' is"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools", "cannot honour"),
        ({"messages": MESSAGES, "logprobs": True}, "logprobs", "cannot honour"),
        ({"messages": MESSAGES, "logprobs": 0}, "logprobs", "cannot honour"),
        (
            {"messages": MESSAGES, "response_format": {"type": "json_object"}},
            "response_format",
            "cannot honour",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
            "text only",
        ),
        ({"messages": MESSAGES, "desist": {"mod": 1}}, "desist.mod", "'desist.mod' is not a known field"),
        ({"messages": MESSAGES, "desist": {"mode": "fast"}}, "desist.mode", "'desist.mode' is 'fast'"),
        ({"messages": MESSAGES, "desist": {"alpha": 2}}, "desist.alpha", "between 0 and 1"),
        ({"messages": MESSAGES, "desist": {"alpha": "1e-999999999"}}, "desist.alpha", "between 0 and 1"),
        (
            {"messages": MESSAGES, "desist": {"alpha": 0.01}},
            "desist.alpha",
            r"Certified: 0\.05 \(consistency\)",
        ),
        ({"messages": MESSAGES, "desist": {"alpha": 0.05, "mode": "off"}}, "desist.alpha", "mode is 'off'"),
        (
            {"messages": MESSAGES, "desist": {"budget": -2}},
            "desist.budget",
            "-1 means no limit, 0 closes thinking at once",
        ),
        ({"messages": MESSAGES, "desist": {"budget": True}}, "desist.budget", "'desist.budget' is True"),
        ({"messages": MESSAGES, "desist": {"budget": 1e9}}, "desist.budget", "'desist.budget' is"),
        ({"messages": MESSAGES, "thinking_token_budget": 12.5}, "thinking_token_budget", "is 12.5"),
        ({"messages": MESSAGES, "thinking_budget": "12"}, "thinking_budget", "is '12'"),
        ({"messages": MESSAGES, "reasoning_effort": "ultra"}, "reasoning_effort", "none, minimal, low"),
        (
            {"messages": MESSAGES, "chat_template_kwargs": {"thinking_token_budget": 1}},
            "chat_template_kwargs.thinking_token_budget",
            "no effect there",
        ),
    ],
)
def test_bad_requests_name_field_value_and_remedy(
    base: str, body: Any, param: str | None, words: str
) -> None:
    reply = post(base, body)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param or param is None
    assert re.search(words, error["message"], re.DOTALL), error["message"]


def test_no_text_of_a_request_is_repeated_in_full(base: str) -> None:
    reply = post(base, {"messages": [{"role": "user", "content": "x"}], "temperature": "secret" * 50})
    assert "secret" * 20 not in reply.text


def test_wrong_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"'nope'.*Served: fake, org/other"):
        client.chat.completions.create(model="nope", messages=MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (UpstreamError("gateway is gone", 504), 504, "gateway is gone"),
        (EngineError("no room"), 503, "no room"),
        (RuntimeError("prompt text"), 500, "internal error"),
    ],
)
def test_early_engine_errors_keep_their_status(
    base: str, engine: FakeEngine, stream: bool, failure: Exception, status: int, words: str
) -> None:
    engine.script = [failure]
    reply = post(base, {"messages": MESSAGES, "stream": stream})
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert "prompt text" not in reply.text
    assert reply.headers["x-request-id"]


def test_late_errors_are_an_event_and_no_clean_end(
    base: str, engine: FakeEngine, client: openai.OpenAI
) -> None:
    engine.script = [Delta("reasoning", "so"), UpstreamError("ctx too long", 400)]
    got = chunks(base)
    assert got[-1]["error"]["message"] == "ctx too long"
    assert not any(choice["finish_reason"] for chunk in got[:-1] for choice in chunk["choices"])
    with pytest.raises(openai.APIError, match="ctx too long"):
        list(client.chat.completions.create(model="fake", messages=MESSAGES, stream=True))


def test_one_failing_choice_stops_the_other(base: str, engine: FakeEngine) -> None:
    engine.scripts = {0: [Delta("reasoning", "a")] * 500, 1: [Delta("reasoning", "b"), EngineError("broke")]}
    engine.pause_s = 0.01
    got = chunks(base, n=2)
    assert got[-1]["error"]["message"] == "broke"
    wait_for(lambda: any(name.endswith("/0") for name in engine.stopped_early))


def test_an_engine_that_just_ends_is_an_error(base: str, engine: FakeEngine) -> None:
    engine.script = [Delta("content", "x")]
    assert post(base, {"messages": MESSAGES}).status_code == 503
    assert "error" in chunks(base)[-1]


def test_reasoning_only_and_pass_through_fields(base: str, engine: FakeEngine) -> None:
    call: dict[str, Any] = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a"'},
    }
    rest: dict[str, Any] = {"index": 0, "function": {"arguments": ": 1}"}}
    engine.script = [
        Delta("content", "", extra={"tool_calls": [call]}),
        Delta("content", "", extra={"tool_calls": [rest]}, choice_extra={"stop_id": 7}),
        Finished("tool_calls", StopReason.NONE, Usage(1, 0, 5), extra={"system_fingerprint": "fp"}),
    ]
    reply = post(base, {"messages": MESSAGES}).json()
    message = reply["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]
    assert message["content"] is None
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["choices"][0]["stop_id"] == 7
    assert reply["system_fingerprint"] == "fp"
    assert [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks(base)][1:3] == [[call], [rest]]


def test_heartbeats_only_while_silent(engine: FakeEngine) -> None:
    slow = FakeEngine(plain_script(), first_pause_s=0.35)
    settings = Settings(
        stream=StreamSettings(heartbeat_s=0.1, reasoning_field="reasoning", desist_object=False)
    )
    with live_server(create_app(settings, engine=slow)) as base:
        reply = post(base, {"messages": MESSAGES, "stream": True})
        assert reply.text.count(": ping\n\n") >= 2
        assert "reasoning_content" not in reply.text
        assert "desist" not in reply.text
        assert reply.headers["cache-control"] == "no-cache"
        events = [line for line in reply.text.split("\n\n") if line.startswith("data: {")]
        assert len(events) == 6
        slow.script = [EngineError("late")]
        late = post(base, {"messages": MESSAGES, "stream": True})
        assert late.status_code == 200  # the heartbeat had begun the stream
        assert '"message":"late"' in late.text


def test_mode_by_header_and_why_uncontrolled(base: str, engine: FakeEngine) -> None:
    reply = post(base, {"messages": MESSAGES}, **{"x-desist-mode": "off"})
    assert reply.headers["x-desist-mode"] == "off"
    assert post(base, {"messages": MESSAGES}, **{"x-desist-mode": "on"}).status_code == 400
    bare = FakeEngine()
    with live_server(create_app(Settings(), engine=bare, certificates=[])) as other:
        told = post(other, {"messages": MESSAGES})
        assert "no certificate is loaded" in told.json()["desist"]["uncontrolled"]
        assert "no certificate is loaded" in told.headers["x-desist-uncontrolled"]
