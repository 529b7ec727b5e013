"""`litellm` as a client, unchanged: reasoning is read and counted, errors are its own."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network at import
litellm: Any = pytest.importorskip("litellm", reason="litellm is not installed")

NAME = "openai/desist-reasoner"


def ask(served: Any, problem: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": problem}]
    return litellm.completion(NAME, messages, api_base=served.url, api_key="none", num_retries=0, **more)


def test_a_complete_answer(served: Any, problems: list[str]) -> None:
    reply = ask(served, problems[0], seed=1)
    message = reply.choices[0].message
    assert message.content
    assert message.reasoning_content
    assert reply.choices[0].finish_reason == "stop"
    counted = reply.usage.completion_tokens_details.reasoning_tokens
    assert abs(counted - served.tokens(message.reasoning_content)) <= 2
    assert counted < reply.usage.completion_tokens


def test_a_stream(served: Any, problems: list[str]) -> None:
    reasoning = content = ""
    counted = 0
    for chunk in ask(served, problems[0], seed=1, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
        usage = getattr(chunk, "usage", None)
        if usage and usage.completion_tokens_details:
            counted = usage.completion_tokens_details.reasoning_tokens or 0
    assert content
    assert abs(counted - served.tokens(reasoning)) <= 2


def test_an_effort_and_a_refused_field(served: Any, problems: list[str]) -> None:
    reply = ask(served, problems[1], reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    assert reply.choices[0].message.content
    with pytest.raises(litellm.BadRequestError, match="thinking_token_budget"):
        ask(served, problems[1], extra_body={"thinking_token_budget": -2})
