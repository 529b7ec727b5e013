"""The text that closes thinking is exact, is there once, and comes at once (R14, R09)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from desist.controller.profiles import get_profile
from desist.proxy import Settings, create_app
from desist.proxy.settings import UpstreamSettings
from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream

MESSAGE = "Enough thinking; answer now."


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    pytest.importorskip("torch")
    from desist.proxy.engines.embedded import EmbeddedEngine
    from tests.fakes.tiny_model import PROFILE, tiny_folder

    profile = replace(PROFILE, handoff_write=f"{MESSAGE}\n</think>\n\n")
    engine = EmbeddedEngine(tiny_folder(), profile=profile, device="cpu", threads=1)
    with live_server(create_app(Settings(), engine=engine, certificates=[])) as base:
        yield base


@pytest.mark.parametrize("seed", range(5))
def test_R14_R09_the_tokens_forced_are_those_of_the_message_at_the_budget(embedded: str, seed: int) -> None:
    from desist.proxy.engines.model import read_model
    from tests.fakes.tiny_model import tiny_folder

    vocabulary = read_model(tiny_folder(), dtype="float32", weights=False).vocabulary
    body = {
        "messages": [{"role": "user", "content": "What is 2 + 5?"}],
        "thinking_token_budget": 8, "max_tokens": 90, "seed": seed,
    }  # fmt: skip
    told = HTTP.post(f"{embedded}/v1/chat/completions", json=body).json()
    if told["desist"]["stop_reason"] == "natural":
        pytest.skip("this seed's thinking ended by itself")
    assert told["desist"]["stop_reason"] == "budget"
    assert told["desist"]["stop_position"] in (8, 9)  # a place inside a character is passed over
    assert told["desist"]["forced_tokens"] == len(vocabulary.encode(f"{MESSAGE}\n</think>\n\n"))
    message = told["choices"][0]["message"]
    assert "</think>" not in (message["reasoning"] or "") + message["content"]
    assert "Enough" not in message["content"]


@pytest.mark.parametrize("ids", [False, True])
def test_R14_a_plain_server_continues_after_the_message_once_and_the_tag_once(ids: bool) -> None:
    fake = FakeUpstream(thoughts=("word ",) * 200, token_ids=ids, pause_s=0.001)
    sentence, tag, _ = get_profile("qwen3").handoff_write.partition("</think>")
    with ExitStack() as servers:
        url = servers.enter_context(live_server(fake.app()))
        settings = Settings(engine="upstream", upstream=UpstreamSettings(url=url, self_test=False))
        base = servers.enter_context(live_server(create_app(settings)))
        body = {"messages": [{"role": "user", "content": "?"}], "thinking_token_budget": 100, "stream": True}
        reply = HTTP.post(f"{base}/v1/chat/completions", json={**body, "max_tokens": 900}).text
    continued = fake.bodies[-1]
    prompt = continued.get("prompt")
    if isinstance(prompt, list):
        text = fake.vocabulary.decode(prompt)
    else:
        text = prompt or continued["messages"][-1]["content"]
    assert text.count(sentence.strip()) == 1
    assert text.count(tag) == 1
    assert text.rstrip().endswith(sentence.strip() + "\n" + tag)
    chunks = [json.loads(e[6:]) for e in reply.split("\n\n") if e.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning") or "" for delta in deltas).count(sentence.strip()) == 1
    assert "".join(delta.get("content") or "" for delta in deltas) == "So it is 4."
