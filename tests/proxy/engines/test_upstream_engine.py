"""The upstream engine against a fake server over real sockets, behind the real proxy."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from pydantic import SecretStr

from desist.controller.core import Policy
from desist.data.errors import ControlError, NotOffered
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.settings import StreamSettings, UpstreamSettings
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream
from tests.proxy.test_app import start

MESSAGES = [{"role": "user", "content": "2+2?"}]
THOUGHTS = "First add. Then check. Wait, again. Done."
SENTENCE = " I have enough to answer now."


class Stack:
    """A fake upstream and a proxy before it."""

    def __init__(self, servers: ExitStack) -> None:
        self._servers = servers
        self.fake = FakeUpstream()
        self.upstream = servers.enter_context(live_server(self.fake.app()))
        self.base = self.proxy()

    def proxy(self, url: str | None = None, keys: tuple[str, ...] = (), **settings: Any) -> str:
        made = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=url or self.upstream, **({"self_test": False} | settings)),
            stream=StreamSettings(reasoning_field="reasoning"),
            api_keys=tuple(SecretStr(key) for key in keys),
        )
        return self._servers.enter_context(live_server(create_app(made)))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ExitStack() as servers:
        yield Stack(servers)


@pytest.fixture(autouse=True)
def fresh(stack: Stack) -> None:
    stack.fake.__init__()  # type: ignore[misc]


def ask(base: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return HTTP.post(f"{base}/v1/chat/completions", json={"messages": MESSAGES, **body}, headers=headers)


def texts(reply: httpx.Response) -> tuple[str, str]:
    assert reply.status_code == 200, reply.text
    message = reply.json()["choices"][0]["message"]
    return (message["reasoning"] or "").rstrip("\n"), message["content"]


def streamed(base: str, **body: Any) -> tuple[str, str, list[dict[str, Any]]]:
    reply = ask(base, stream=True, **body)
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data:")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
    return reasoning.rstrip("\n"), "".join(delta.get("content") or "" for delta in deltas), chunks


@pytest.mark.parametrize("dialect", ["reasoning", "reasoning_content", "both", "tags"])
def test_all_dialects_stream_and_not(stack: Stack, dialect: Any) -> None:
    stack.fake.dialect = dialect
    assert texts(ask(stack.base)) == (THOUGHTS, "It is 4.")
    reasoning, content, chunks = streamed(stack.base)
    assert (reasoning, content) == (THOUGHTS, "It is 4.")
    told = next(chunk["desist"] for chunk in chunks if "desist" in chunk)
    assert told["stop_reason"] == "natural"
    assert told["generated_tokens"] == stack.fake.sent[-1]


def test_tags_opened_by_the_template(stack: Stack) -> None:
    stack.fake.dialect = "opened_tags"
    assert texts(ask(stack.proxy(thinking_opened_by_template=True))) == (THOUGHTS, "It is 4.")


def test_the_request_goes_on_untouched(stack: Stack) -> None:
    body = {
        "model": "any/name", "messages": [{"role": "user", "content": [{"type": "image_url", "x": 1}]}],
        "vendor": {"deep": [1, 2.5, None]}, "tools": [{"type": "function"}], "max_tokens": 900, "user": "u",
        "desist": {"mode": "shadow"}, "n": 1,
    }  # fmt: skip
    reply = HTTP.post(f"{stack.base}/v1/chat/completions", json=body, headers={"authorization": "Bearer mine",
        "traceparent": "00-1", "cookie": "no", "x-request-id": "r1"})  # fmt: skip
    assert reply.status_code == 200
    expected = {key: value for key, value in body.items() if key not in ("desist", "n")}
    assert stack.fake.bodies[0] == expected | {"stream": True, "stream_options": {"include_usage": True}}
    got = stack.fake.headers[0]
    assert (got["authorization"], got["traceparent"], got["x-request-id"]) == ("Bearer mine", "00-1", "r1")
    assert "cookie" not in got
    assert reply.json()["system_fingerprint"] == "fp"


def test_keys_are_kept_apart(stack: Stack) -> None:
    base = stack.proxy(keys=("client",), api_key=SecretStr("upstream"))
    assert ask(base, headers={"authorization": "Bearer client"}).status_code == 200
    assert stack.fake.headers[0]["authorization"] == "Bearer upstream"
    guarded = stack.proxy(keys=("client",))
    assert ask(guarded, headers={"authorization": "Bearer client"}).status_code == 200
    assert "authorization" not in stack.fake.headers[1]


def test_tool_calls_pass(stack: Stack) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    stack.fake.extra_delta = {"tool_calls": [call]}
    message = ask(stack.base).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert message["content"] == "It is 4."


@pytest.mark.parametrize("dialect", ["reasoning", "tags"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_cuts_before_the_cue_and_continues(stack: Stack, dialect: Any, stream: bool) -> None:
    stack.fake.dialect = dialect
    stack.fake.pause_s = 0.002
    body = {"desist": {"budget": 4}, "max_tokens": 500, "stream_options": {"include_usage": True}}
    stack.fake.thoughts = ("First ", "add. ", "Then ", "check. ", "Wait, ", "again. ", *("More ",) * 100)
    base = stack.proxy() if dialect == "reasoning" else stack.base
    if stream:
        reasoning, content, chunks = streamed(base, **body)
        told = next(chunk["desist"] for chunk in chunks if "desist" in chunk)
        usage = chunks[-1]["usage"]
    else:
        reply = ask(base, **body)
        reasoning, content = texts(reply)
        told, usage = reply.json()["desist"], reply.json()["usage"]
    assert content == "So it is 4."
    assert reasoning.endswith(SENTENCE)
    assert "Wait" not in reasoning
    assert (told["stop_reason"], told["certified"]) == ("budget", False)
    assert told["stop_position"] <= 5
    first, second = stack.fake.bodies
    assert (second["add_generation_prompt"], second["continue_final_message"]) == (False, True)
    prefix = second["messages"][-1]["content"]
    assert prefix.startswith("<think>\nFirst add.")
    assert prefix.endswith(f"{SENTENCE}\n</think>\n\n")
    assert second["messages"][:-1] == first["messages"]
    assert second["max_tokens"] < 500
    wait_for(lambda: not stack.fake.ended[0])
    assert stack.fake.sent[0] < 100  # the server really stopped
    assert told["generated_tokens"] == usage["completion_tokens"]
    others = 2 + (2 if dialect == "tags" else 0)  # the answer's, and those of the tag
    assert (
        told["generated_tokens"]
        == told["stop_position"] + told["rewound_tokens"] + told["forced_tokens"] + others
    )
    assert usage["prompt_tokens"] == 11


def test_the_budget_waits_for_a_clean_place_within_its_grace(stack: Stack) -> None:
    stack.fake.thoughts = ("word ",) * 39 + ("So ", "far.\n", "\n", "Next ") + ("word ",) * 50
    reply = ask(stack.base, desist={"budget": 40}, max_tokens=4000)
    reasoning, _ = texts(reply)
    assert reasoning == "word " * 39 + "So far." + SENTENCE
    stack.fake.thoughts = ("word ",) * 300
    late = ask(stack.base, desist={"budget": 40}, max_tokens=4000)
    assert late.json()["desist"]["stop_position"] <= 44
    assert texts(late)[0].count("word") <= 44


@pytest.mark.parametrize("running_usage", [True, False])
def test_chunks_are_never_taken_for_tokens(stack: Stack, running_usage: bool) -> None:
    stack.fake.running_usage = running_usage
    stack.fake.thoughts = tuple(f"many words in one chunk of the stream, {n * n} or {n}. " for n in range(60))
    told = ask(stack.base, desist={"budget": 30}, max_tokens=5000).json()["desist"]
    assert told["stop_reason"] == "budget"
    chunks_read = stack.fake.bodies[1]["messages"][-1]["content"].count("many")
    assert chunks_read >= 28 if running_usage else 2 <= chunks_read <= 4


def test_budget_zero_closes_at_once(stack: Stack) -> None:
    reply = ask(stack.base, desist={"budget": 0}, max_tokens=100)
    assert texts(reply) == (SENTENCE.lstrip(), "So it is 4.")
    assert len(stack.fake.bodies) == 2  # what the server can do is not known: it is asked for its ids first
    assert stack.fake.bodies[1]["messages"][-1]["content"].startswith("<think>\n")
    assert reply.json()["desist"]["stop_position"] == 0


def test_room_for_an_answer_is_kept(stack: Stack) -> None:
    stack.fake.thoughts = ("word ",) * 100
    reply = ask(stack.base, max_tokens=60)
    assert texts(reply)[1] == "So it is 4."
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    assert stack.fake.bodies[1]["max_tokens"] >= 2
    watched = ask(stack.base, max_tokens=60, desist={"mode": "shadow"}).json()
    choice = watched["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert watched["desist"]["stop_reason"] == "length"


def test_thinking_switched_off_is_left_alone(stack: Stack) -> None:
    stack.fake.thoughts = ()
    reply = ask(stack.base, chat_template_kwargs={"enable_thinking": False}, desist={"budget": 1})
    assert texts(reply) == ("", "It is 4.")
    assert reply.json()["desist"]["stop_reason"] == "none"
    assert len(stack.fake.bodies) == 1


def test_an_answer_called_reasoning_and_a_second_close_tag(stack: Stack) -> None:
    stack.fake.answer_as_reasoning = True
    stack.fake.continued = ("\n\n</thi", "nk>\n\n", "Paris", ".")
    assert texts(ask(stack.base, desist={"budget": 0}))[1] == "Paris."


def test_extract_ends_at_the_closing_brace(stack: Stack) -> None:
    stack.fake.continued = ("\\frac{1}", "{2}", "} and ", "so on") + ("on",) * 200
    stack.fake.pause_s = 0.002
    reply = ask(stack.base, desist={"budget": 0, "answer": "extract"})
    assert texts(reply)[1] == "The final answer is \\boxed{\\frac{1}{2}}"
    stack.fake.continued = ("5",)
    assert texts(ask(stack.base, desist={"budget": 0, "answer": "extract"}))[1].endswith("\\boxed{5}")


def test_choices_are_calls_of_their_own(stack: Stack) -> None:
    reply = ask(stack.base, n=3, seed=10).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert sorted(body["seed"] for body in stack.fake.bodies) == [10, 11, 12]
    assert all("n" not in body for body in stack.fake.bodies)
    assert reply["usage"]["prompt_tokens"] == 11


def test_text_completions(stack: Stack) -> None:
    stack.fake.dialect = "opened_tags"
    url = f"{stack.base}/v1/completions"
    raw = HTTP.post(url, json={"prompt": "2+2?<think>\n", "desist": {"mode": "off"}}).json()["choices"][0]
    assert raw["text"] == f"{THOUGHTS}\n</think>\n\nIt is 4."
    split = HTTP.post(url, json={"prompt": "2+2?<think>\n"}).json()["choices"][0]
    assert (split["reasoning"].rstrip(), split["text"]) == (THOUGHTS, "It is 4.")
    cut = HTTP.post(url, json={"prompt": "2+2?<think>\n", "desist": {"budget": 3}}).json()
    assert cut["choices"][0]["text"] == "So it is 4."
    assert stack.fake.bodies[-1]["prompt"].startswith("2+2?<think>\nFirst add.")
    ids = HTTP.post(url, json={"prompt": [1, 2, 3], "desist": {"budget": 3}}).json()
    assert stack.fake.bodies[-1]["prompt"] == [1, 2, 3]
    assert "token ids" in ids["desist"]["uncontrolled"]


def test_a_server_that_does_not_stream(stack: Stack) -> None:
    stack.fake.streams = False
    assert texts(ask(stack.base)) == (THOUGHTS, "It is 4.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            400,
            b'{"error": {"message": "bad thing", "type": "BadRequestError", "code": 400, "own": 1}}',
            "bad thing",
        ),
        (429, b'{"error": "plain"}', "answered 429: plain"),
        (422, b'{"detail": "older shape"}', "answered 422: older shape"),
        (503, b"<html>down</html>", "answered 503: <html>down</html>"),
        (500, b"", "answered 500"),
    ],
)
def test_upstream_errors_keep_status_and_body(
    stack: Stack, stream: bool, status: int, body: bytes, words: str
) -> None:
    stack.fake.refuse = (status, body, {"retry-after": "7"})
    reply = ask(stack.base, stream=stream)
    assert reply.status_code == status
    assert reply.headers["retry-after"] == "7"
    assert words in reply.json()["error"]["message"]
    if b'"own"' in body:
        assert reply.content == body
    assert len(stack.fake.bodies) == 1  # no retry


@pytest.mark.parametrize(("knob", "words"), [("error_after", "ctx too long"), ("cut_after", "broke off")])
def test_failures_in_the_middle_are_error_events(stack: Stack, knob: str, words: str) -> None:
    setattr(stack.fake, knob, 3)
    _, _, chunks = streamed(stack.base)
    assert words in chunks[-1]["error"]["message"]
    assert not any(choice.get("finish_reason") for chunk in chunks for choice in chunk.get("choices", []))
    whole = ask(stack.base)
    assert whole.status_code == (400 if knob == "error_after" else 502)
    assert words in whole.json()["error"]["message"]


def test_a_refused_continuation_is_told(stack: Stack) -> None:
    stack.fake.refuse_continuation = (400, b'{"error": {"message": "no continue_final_message"}}')
    _, _, chunks = streamed(stack.base, desist={"budget": 2})
    assert "no continue_final_message" in chunks[-1]["error"]["message"]


def test_unreachable_and_late(stack: Stack) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        base = stack.proxy(url=url)
        reply = ask(base)
        assert reply.status_code == 502
        assert "cannot be reached" in reply.json()["error"]["message"]
        ready = HTTP.get(f"{base}/readyz")
        assert ready.status_code == 503
        assert "cannot be reached" in ready.json()["reason"]
    stack.fake.header_pause_s = 1.0
    late = ask(stack.proxy(first_byte_s=0.1))
    assert late.status_code == 504
    stack.fake.header_pause_s, stack.fake.pause_s = 0.0, 1.0
    assert ask(stack.proxy(idle_s=0.2)).status_code == 504


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["before the headers", "thinking", "answering"])
def test_a_client_that_leaves_stops_the_server(stack: Stack, stream: bool, phase: str) -> None:
    fake = stack.fake
    fake.thoughts = ("word ",) * 400
    fake.continued = ("word ",) * 400
    fake.pause_s = 0.01
    fake.header_pause_s = 0.4 if phase == "before the headers" else 0.0
    budget = {"budget": 0} if phase == "answering" else {"mode": "shadow"}
    body = json.dumps({"messages": MESSAGES, "stream": stream, "desist": budget}).encode()
    address = urlsplit(stack.base)
    with socket.create_connection((str(address.hostname), address.port or 0)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        calls = 2 if phase == "answering" else 1
        wait_for(lambda: len(fake.bodies) == calls)
        if phase != "before the headers":
            wait_for(lambda: len(fake.sent) == calls and fake.sent[-1] > 5)
    time.sleep(0.6 if phase == "before the headers" else 0.3)
    sent = sum(fake.sent)
    time.sleep(0.2)
    assert sum(fake.sent) == sent
    assert sent < 200
    assert len(fake.bodies) == calls


def test_models_and_ready(stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{stack.base}/v1", api_key="k") as client:
        assert [model.id for model in client.models.list()] == ["up"]
    assert HTTP.get(f"{stack.base}/readyz").status_code == 200
    assert ask(stack.base).json()["model"] == "up"


def test_a_probe_policy_is_refused_at_start(stack: Stack) -> None:
    probe = OperatingPoint(Fraction("0.05"), "harm", "write", Policy(lam=0.5, certified=True), "c")
    made = Settings(engine="upstream", upstream=UpstreamSettings(url="http://127.0.0.1:1"))
    with pytest.raises(NotOffered, match="reads hidden; engine 'upstream' offers nothing") as caught:
        start(create_app(made, certificates=[probe]))
    assert re.search("set control.budget", str(caught.value))


def test_unknown_profile_is_refused() -> None:
    made = Settings(engine="upstream", upstream=UpstreamSettings(url="http://127.0.0.1:1", profile="nope"))
    with pytest.raises(ControlError, match="nope"):
        create_app(made)
