"""What peers were seen to do wrong before a server that thinks for 60 chunks, here (B3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from desist.proxy import Settings, create_app
from desist.proxy.settings import StreamSettings, UpstreamSettings
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream, Fault, served

THOUGHTS = tuple(f"w{n} " for n in range(60))
#: What a body gets on its way, and nothing else.
ADDED = {"stream", "stream_options", "return_token_ids", "model"}


class World:
    """The fake upstream and a proxy before it."""

    def __init__(self, servers: ExitStack) -> None:
        self._servers = servers
        self.fake = FakeUpstream()
        self._url = servers.enter_context(served(self.fake))
        self.base = self.proxy()

    def proxy(self, **upstream: Any) -> str:
        settings = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=self._url, self_test=False, **upstream),
            stream=StreamSettings(reasoning_field="reasoning"),
        )
        return self._servers.enter_context(live_server(create_app(settings)))

    def reset(self, **knobs: Any) -> None:
        stop = self.fake.stop_listening
        self.fake.__init__(  # type: ignore[misc]
            thoughts=THOUGHTS, answer=("Answer ", "42"), continued=("Answer ", "42"), pause_s=0.01, **knobs
        )
        self.fake.stop_listening = stop

    def ask(
        self, base: str | None = None, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        messages = [{"role": "user", "content": "?"}]
        url = f"{base or self.base}/v1/chat/completions"
        return HTTP.post(url, json={"messages": messages, **body}, headers=headers)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as servers:
        yield World(servers)


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.reset()


def joined(reply: httpx.Response) -> tuple[str, str, dict[str, Any]]:
    """(reasoning, content, the `desist` object) of a reply, streamed or not."""
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        body = reply.json()
        message = body["choices"][0]["message"]
        return message.get("reasoning") or "", message["content"], body["desist"]
    reasoning, content, told = "", "", {}
    for event in reply.text.split("\n\n"):
        if event.startswith("data: {"):
            chunk = json.loads(event.removeprefix("data: "))
            told = chunk.get("desist", told)
            for choice in chunk["choices"]:
                reasoning += choice["delta"].get("reasoning") or ""
                content += choice["delta"].get("content") or ""
    return reasoning, content, told


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("dialect", "tag_cut"),
    [
        *((dialect, cut) for dialect in ("tags", "opened_tags") for cut in (None, 1, 4, 6)),
        ("reasoning", None),
        ("reasoning_content", None),
    ],
)
def test_B3_a_cap_stops_the_server_and_claims_no_more_than_it_saved(
    world: World, stream: bool, dialect: Any, tag_cut: int | None
) -> None:
    world.fake.dialect, world.fake.tag_cut = dialect, tag_cut
    base = world.proxy(thinking_opened_by_template=True) if dialect == "opened_tags" else world.base
    reasoning, content, told = joined(world.ask(base, stream=stream, thinking_token_budget=32))
    assert content == "Answer 42"
    assert "think>" not in reasoning
    assert reasoning.startswith("w0 w1 ")
    assert told["stop_reason"] == "budget"
    wait_for(lambda: len(world.fake.ended) == 2)
    assert world.fake.ended[0] is False
    assert world.fake.sent[0] < 50  # it was left: what was not generated is what was saved
    saved = told.get("saved_tokens_estimate")
    assert not saved or saved <= 60 - world.fake.sent[0]


def test_B3_nothing_is_saved_where_thinking_ended_by_itself(world: World) -> None:
    world.fake.thoughts = THOUGHTS[:5]
    _, content, told = joined(world.ask(thinking_token_budget=32))
    assert content == "Answer 42"
    assert told["stop_reason"] == "natural"
    assert not told.get("saved_tokens_estimate")
    assert world.fake.ended == [True]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("stream", [True, False])
def test_B3_max_tokens_is_never_raised(world: World, name: str, stream: bool) -> None:
    world.ask(stream=stream, thinking_token_budget=8, **{name: 100})
    assert len(world.fake.bodies) == 2
    assert all(1 <= body[name] <= 100 for body in world.fake.bodies)


def test_B3_the_body_is_the_clients(world: World) -> None:
    sent = {
        "user": "u-1", "temperature": 0.71, "top_p": 0.9, "seed": 5, "stop": ["\n\nUser:"],
        "vendor": {"a": [1]}, "presence_penalty": 0.1,
    }  # fmt: skip
    world.ask(thinking_token_budget=8, max_tokens=300, **sent)
    first, second = world.fake.bodies
    for body in (first, second):
        assert {name: body.get(name) for name in sent} == sent
        assert "logprobs" not in body
    ours = {"messages", "max_tokens", "thinking_token_budget"}
    assert set(first) - ADDED - ours == set(sent)


@pytest.mark.parametrize(
    "budget", [{"thinking_token_budget": 8}, {"thinking": {"type": "enabled", "budget_tokens": 8}}]
)
def test_R76_no_hint_is_put_into_the_prompt(world: World, budget: dict[str, Any]) -> None:
    """A budget binds by a cut; the model is never told of it, so no hint can make it think longer."""
    _, content, told = joined(world.ask(**budget))
    assert (content, told["stop_reason"]) == ("Answer 42", "budget")
    assert world.fake.bodies[0]["messages"] == [{"role": "user", "content": "?"}]


@pytest.mark.parametrize("stream", [True, False])
def test_B3_the_key_goes_on_or_is_replaced_on_purpose(world: World, stream: bool) -> None:
    key = {"authorization": "Bearer mine"}
    world.ask(headers=key, stream=stream, thinking_token_budget=8)
    assert [headers["authorization"] for headers in world.fake.headers] == ["Bearer mine"] * 2
    world.reset()
    own = world.proxy(api_key=SecretStr("ours"))
    world.ask(own, headers=key, stream=stream, thinking_token_budget=8)
    assert [headers["authorization"] for headers in world.fake.headers] == ["Bearer ours"] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_B3_R69_an_early_error_keeps_its_status(world: World, stream: bool) -> None:
    body = b'{"error": {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}}'
    world.fake.faults = [Fault("status", status=404, body=body)]
    reply = world.ask(stream=stream)
    assert (reply.status_code, reply.content) == (404, body)
    assert reply.headers["content-type"].startswith("application/json")


def test_B3_the_first_thought_comes_while_the_server_still_thinks(world: World) -> None:
    """No reading of the whole body first: the server has not ended when the first chunk is here."""
    world.fake.pause_s = 0.02
    body = {"messages": [{"role": "user", "content": "?"}], "stream": True}
    with HTTP.stream("POST", f"{world.base}/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if '"w0 "' in line:
                assert world.fake.ended == [False]
                return
    raise AssertionError("the first thought never came")
