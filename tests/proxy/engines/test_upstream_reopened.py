"""Thinking that a model opens again after a stop, before a server that only writes text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from desist.proxy import Settings, create_app
from desist.proxy.settings import UpstreamSettings
from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream
from tests.fakes.upstream.script import Token
from tests.fakes.upstream.vocabulary import HEADER

AGAIN = ("<think>", "Hmm, ", "once ", "more. ", "</think>", "So it ", "is 4.")


@dataclass
class Reopening(FakeUpstream):
    """Opens its thinking again after each of the first `reopens` blocks."""

    reopens: int = 1

    def _tokens(
        self, body: Mapping[str, Any], continues: bool, *, parsed: bool
    ) -> tuple[list[Token], str, str | None]:
        prompt = body.get("prompt") or "".join(str(each["content"]) for each in body.get("messages", ()))
        text = self.vocabulary.decode(prompt) if isinstance(prompt, list) else str(prompt)
        closed = text.rpartition(HEADER)[2].count("</think>")
        plain, self.continued = self.continued, AGAIN if closed <= self.reopens else self.continued
        try:
            return super()._tokens(body, continues, parsed=parsed)
        finally:
            self.continued = plain


def ask(fake: FakeUpstream, **fields: Any) -> dict[str, Any]:
    with live_server(fake.app()) as upstream:
        behind = UpstreamSettings(url=upstream, self_test=False, retries=0)
        with live_server(create_app(Settings(engine="upstream", upstream=behind))) as base:
            body = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}], **fields}
            reply = HTTP.post(f"{base}/v1/chat/completions", json=body | {"desist": {"budget": 3}})
            assert reply.status_code == 200, reply.text
            told: dict[str, Any] = reply.json()
            return told


@pytest.mark.parametrize("ids", [True, False])
def test_a_model_that_will_not_stop_is_shown_and_counted(ids: bool) -> None:
    """Nothing of it is lost, it is no answer, and it is told that the stop did not hold."""
    fake = Reopening(token_ids=ids, reopens=99)
    told = ask(fake)
    message = told["choices"][0]["message"]
    assert message["content"] == "So it is 4."
    assert message["reasoning"].endswith("Hmm, once more. ")
    assert "opened thinking again" in told["desist"]["uncontrolled"]
    counted = told["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert told["desist"]["reasoning_tokens"] == counted
    if ids:
        assert counted == 3 + 3  # those before the stop, and those of the block that was opened again
    assert counted < told["usage"]["completion_tokens"]


@pytest.mark.parametrize("ids", [True, False])
def test_thinking_that_is_opened_again_is_closed_at_once(ids: bool) -> None:
    """The client gets the answer alone; what the model spent on thinking again is told as thrown away."""
    fake = Reopening(token_ids=ids, reopens=1)
    told = ask(fake)
    message = told["choices"][0]["message"]
    assert message["content"].strip() == "".join(fake.continued).strip()
    assert "once more" not in message["reasoning"]
    assert told["desist"].get("uncontrolled") is None
    assert told["desist"]["stop_reason"] == "budget"
    if ids:
        assert told["desist"]["rewound_tokens"] >= 1
