"""Headers: ids in and out, what goes on upstream, and what responses tell, whole ones and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Policy
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.intake.headers import header_text, stop_headers
from desist.proxy.settings import UpstreamSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream

POINT = OperatingPoint(Fraction(1, 20), "consistency", "write", Policy(lam=0.9, certified=True), "c")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[POINT])) as found:
        yield found


@pytest.mark.parametrize("name", ["x-request-id", "X-Correlation-ID", "x-trace-id", "Request-Id"])
def test_an_id_is_taken_from_any_of_its_headers(base: str, name: str) -> None:
    reply = HTTP.get(f"{base}/v1/models", headers={name: "my-id.1:2_3"})
    assert reply.headers["x-request-id"] == "my-id.1:2_3"


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "a\tb", "<script>", "a/b", "%0d%0a"])
def test_an_id_that_is_none_is_replaced(base: str, value: str) -> None:
    first, second = (
        HTTP.get(f"{base}/v1/models", headers={"x-request-id": value}).headers["x-request-id"] for _ in "ab"
    )
    assert first != second
    assert value not in (first, second)


def test_errors_carry_the_id_too(base: str) -> None:
    for path in ("/nowhere", "/v1/models/none"):
        assert HTTP.get(base + path, headers={"x-request-id": "e1"}).headers["x-request-id"] == "e1"
    bad = HTTP.post(f"{base}/v1/chat/completions", content=b"{", headers={"x-request-id": "e2"})
    assert (bad.status_code, bad.headers["x-request-id"]) == (400, "e2")


def test_a_whole_response_tells_all_in_headers(base: str) -> None:
    reply = HTTP.post(f"{base}/v1/chat/completions", json=CHAT | {"desist": {"budget": 50}})
    told = reply.headers
    assert told["x-desist-mode"] == "active"
    assert told["x-desist-stop-reason"] == "natural"
    assert (told["x-desist-reasoning-tokens"], told["x-desist-answer-tokens"]) == ("5", "4")
    assert told["x-desist-certificate"] == "c"
    assert told["x-desist-budget"] == "50"
    assert float(told["x-desist-overhead-ms"]) > 0
    body = reply.json()["desist"]
    assert (body["certificate"], str(body["overhead_ms"])) == ("c", told["x-desist-overhead-ms"])


def test_a_stream_tells_what_is_known_and_the_rest_at_its_end(base: str) -> None:
    reply = HTTP.post(f"{base}/v1/chat/completions", json=CHAT | {"stream": True})
    told = reply.headers
    assert (told["x-desist-mode"], told["x-desist-certificate"]) == ("active", "c")
    assert float(told["x-desist-overhead-ms"]) > 0
    assert "x-desist-stop-reason" not in told
    chunks = [json.loads(event[6:]) for event in reply.text.split("\n\n") if event.startswith("data: {")]
    found = [chunk["desist"] for chunk in chunks if "desist" in chunk]
    assert len(found) == 1
    assert (found[0]["stop_reason"], found[0]["reasoning_tokens"]) == ("natural", 5)


@pytest.mark.parametrize(
    ("keys", "upstream", "shown", "sent"),
    [
        ((), {}, "Bearer client", "Bearer client"),  # nobody is asked for a key here
        ((), {}, None, None),
        ((), {"api_key": "ours"}, "Bearer client", "Bearer ours"),
        (("client",), {"api_key": "ours"}, "Bearer client", "Bearer ours"),
        (("client",), {}, "Bearer client", None),  # ours alone: it opens nothing behind
        (("client",), {"forward_authorization": True}, "Bearer client", "Bearer client"),
        ((), {"forward_authorization": False}, "Bearer client", None),
    ],
)
@pytest.mark.parametrize("mode", ["active", "off"])
def test_authorization_goes_on_or_is_replaced_on_purpose(
    keys: tuple[str, ...], upstream: dict[str, Any], shown: str | None, sent: str | None, mode: str
) -> None:
    fake = FakeUpstream()
    with ExitStack() as servers:
        url = servers.enter_context(live_server(fake.app()))
        behind = UpstreamSettings(url=url, self_test=False, **upstream)
        settings = Settings(engine="upstream", upstream=behind, api_keys=keys)  # type: ignore[arg-type]
        base = servers.enter_context(live_server(create_app(settings)))
        headers = {
            "x-trace-id": "t-1", "traceparent": TRACE, "tracestate": "a=b", "x-desist-mode": mode,
            "connection": "keep-alive, x-private", "x-private": "p", "te": "trailers",
        } | ({"authorization": shown} if shown else {})  # fmt: skip
        reply = httpx.post(f"{base}/v1/chat/completions", json=CHAT, headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-desist-mode"] == mode
    got = fake.headers[-1]
    assert got.get("authorization") == sent
    assert (got["x-request-id"], got["traceparent"], got["tracestate"]) == ("t-1", TRACE, "a=b")
    assert not {"te", "x-private", "x-desist-mode"} & set(got)
    assert "transfer-encoding" not in reply.headers or "content-length" not in reply.headers


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30)


@given(
    st.dictionaries(
        st.sampled_from(["stop_reason", "uncontrolled", "certificate", "notices", "budget"]), values
    )
)
def test_any_value_is_a_header(told: dict[str, Any]) -> None:
    for name, text in stop_headers({"mode": "active"} | told).items():
        assert name.startswith("x-desist-")
        assert text.isascii()
        assert "\n" not in text
        assert "\r" not in text
    assert stop_headers({"mode": "off"}) == {"x-desist-mode": "off"}
    assert header_text("a\r\nb\u00fc") == "a b?"
