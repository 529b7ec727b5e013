"""Controls on a real engine: the built-in reasoner behind the routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from desist.proxy import Settings, create_app
from desist.proxy.settings import SamplingSettings
from tests.fakes.server import HTTP, live_server

PROBLEM = "Tom has 3 boxes with 12 pens each. He gives away 5 pens. How many pens does he have left?"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    settings = Settings(device="cpu", sampling=SamplingSettings(max_tokens=300))
    with live_server(create_app(settings)) as address:
        yield address


def ask(base: str, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": PROBLEM}], "seed": 1, **body}
    reply = HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers or {})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.parametrize(
    "off",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        {"think": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"reasoning_effort": "none"},
    ],
)
def test_R25_thinking_off_leaves_the_controller_idle(base: str, off: dict[str, Any]) -> None:
    reply = ask(base, **off)
    message, told = reply["choices"][0]["message"], reply["desist"]
    assert message["reasoning"] is None
    assert message["content"]
    assert (told["boundaries_scored"], told["stop_position"], told["forced_tokens"]) == (0, None, 0)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    ("said", "by"),
    [
        ({"nvext": {"max_thinking_tokens": 8}}, "nvext.max_thinking_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8}}, "thinking.budget_tokens"),
        ({"headers": {"x-desist-budget": "8"}, "thinking_budget": 9}, "x-desist-budget"),
    ],
)
def test_R07_R77_a_budget_binds_and_is_named(base: str, said: dict[str, Any], by: str) -> None:
    reply = ask(base, **said, desist={"reasoning_format": "inline"})
    told = reply["desist"]
    assert (told["stop_reason"], told["budget"], told["budget_by"]) == ("budget", 8, by)
    assert 0 < told["reasoning_tokens"] <= 8
    content = reply["choices"][0]["message"]["content"]
    thought, answer = content.removeprefix("<think>\n").split("\n</think>\n\n")
    assert thought
    assert answer


def test_R44_a_budget_above_max_tokens_leaves_an_answer(base: str) -> None:
    reply = ask(base, thinking_token_budget=500, max_tokens=40)
    assert (reply["desist"]["budget"], reply["desist"]["budget_by"]) == (30, "max_tokens")
    assert reply["choices"][0]["message"]["content"]
    assert reply["usage"]["completion_tokens"] <= 40
