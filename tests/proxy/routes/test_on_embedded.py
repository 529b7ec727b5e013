"""Responses and stopping by hand on the built-in reasoner, with the real `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.engines.embedded import EmbeddedEngine
from tests.fakes.server import live_server

PROBLEM = "A train leaves at 9:40 and arrives at 13:05. How many minutes does it take?"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with live_server(create_app(Settings(), engine=EmbeddedEngine(threads=1), certificates=[])) as address:
        yield address


def test_a_stopped_request_closes_its_thinking_and_answers(base: str) -> None:
    """In mode off, where nothing else could have stopped it."""
    body = {"messages": [{"role": "user", "content": PROBLEM}], "seed": 3, "desist": {"mode": "off"}}
    url = f"{base}/v1/chat/completions"
    with httpx.Client(timeout=60) as http, http.stream("POST", url, json=body | {"stream": True}) as reply:
        parts = reply.iter_text()
        text = next(parts)
        told = http.post(f"{base}/desist/v1/requests/{reply.headers['x-request-id']}/stop").json()
        text += "".join(parts)
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    ended = events[-1]
    assert told["stopped"] == 1
    assert ended["desist"]["stop_reason"] == "manual"
    assert ended["desist"]["reasoning_tokens"] < 60  # alone it thinks for more than a hundred
    assert ended["desist"]["answer_tokens"] > 0
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events)


def test_responses_with_the_openai_client(base: str) -> None:
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        asked: Any = {"model": client.models.list().data[0].id, "input": PROBLEM, "extra_body": {"seed": 3}}
        whole = client.responses.create(**asked)
        assert [item.type for item in whole.output] == ["reasoning", "message"]
        assert "boxed" in whole.output_text
        assert whole.usage is not None
        reasoning = whole.usage.output_tokens_details.reasoning_tokens
        assert 30 < reasoning < whole.usage.output_tokens
        with client.responses.stream(**asked) as streamed:
            for _ in streamed:
                pass
            final = streamed.get_final_response()
        assert (final.output_text, final.usage) == (whole.output_text, whole.usage)
        budgeted = client.responses.create(**{**asked, "extra_body": {"seed": 3, "desist": {"budget": 8}}})
        assert budgeted.usage is not None
        assert budgeted.usage.output_tokens_details.reasoning_tokens < reasoning
        assert budgeted.output_text
