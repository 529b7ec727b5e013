"""Text completions, models, health, metrics, keys and limits over real HTTP; start-up refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from desist.controller.core import Action, Decision, Policy, StopReason
from desist.data.errors import EngineError, NotOffered
from desist.proxy import Settings, create_app
from desist.proxy.answering.estimates import StepTable
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.base import Delta, Finished, Usage
from desist.proxy.intake.headers import header_text
from desist.proxy.settings import LimitSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server

POINT = OperatingPoint(
    Fraction("0.05"), "consistency", "write", Policy(lam=0.8, certified=True), "c", StepTable((0,), (40.0,))
)


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def base(engine: FakeEngine) -> Iterator[str]:
    limits = LimitSettings(max_body_bytes=200_000, max_choices=6)
    with live_server(create_app(Settings(limits=limits), engine=engine, certificates=[POINT])) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(engine: FakeEngine) -> None:
    engine.__init__()  # type: ignore[misc]


def test_completions_with_the_openai_client(base: str, engine: FakeEngine) -> None:
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        reply = client.completions.create(model="fake", prompt=["one", "two"], n=2, max_tokens=9, seed=1)
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
        assert {choice.text for choice in reply.choices} == {"The answer is 4."}
        assert reply.choices[0].model_extra is not None
        assert reply.choices[0].model_extra["reasoning"] == "2 and 2 make 4."
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (14, 36)
        prompts = {request.request_id[-1]: request.prompt for request in engine.requests}
        assert prompts == {"0": "one", "1": "one", "2": "two", "3": "two"}
        streamed = list(client.completions.create(model="fake", prompt=[3, 4, 5], stream=True))
        assert "".join(chunk.choices[0].text for chunk in streamed) == "The answer is 4."
        assert streamed[-1].choices[0].finish_reason == "stop"
        assert engine.requests[-1].prompt == (3, 4, 5)
        client.completions.create(model="fake", prompt=[[1, 2], [3]])
        assert [request.prompt for request in engine.requests[-2:]] == [(1, 2), (3,)]


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], [1.5], [True], ["a", 1], [-1], None, 7, {"a": 1}])
def test_bad_prompts(base: str, prompt: Any) -> None:
    reply = HTTP.post(f"{base}/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"


def test_models(base: str) -> None:
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["fake", "org/other"]
        assert client.models.retrieve("org/other").id == "org/other"
        with pytest.raises(openai.NotFoundError, match="Served: fake, org/other"):
            client.models.retrieve("x")
    assert HTTP.get(f"{base}/v1/models/fake").json()["max_model_len"] == 4096


def test_health(base: str, engine: FakeEngine) -> None:
    assert HTTP.get(f"{base}/healthz").json()["status"] == "ok"
    ready = HTTP.get(f"{base}/readyz")
    assert ready.status_code == 200
    assert ready.json()["certificates"] == [
        {"name": "c", "alpha": 0.05, "loss": "consistency", "answer": "write"}
    ]
    engine.unready = "weights are loading"
    waiting = HTTP.get(f"{base}/readyz")
    assert waiting.status_code == 503
    assert waiting.json()["reason"] == "weights are loading"
    assert "weights are loading" in waiting.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nope", 404, "Known paths"),
        ("GET", "/docs", 404, "Known paths"),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
    ],
)
def test_unknown_paths_and_methods(base: str, method: str, path: str, status: int, words: str) -> None:
    reply = HTTP.request(method, base + path)
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert reply.headers["x-request-id"]


def test_request_ids(base: str) -> None:
    assert HTTP.get(f"{base}/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    odd = HTTP.get(f"{base}/healthz", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
    assert odd != "a b\tc"
    assert len(odd) == 24


def test_body_limit(base: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(300):
            yield b" " * 1000

    for content in (b" " * 200_001, pieces()):
        reply = HTTP.post(f"{base}/v1/chat/completions", content=content)
        assert reply.status_code == 413
        assert "200000 bytes" in reply.json()["error"]["message"]


def test_metrics_count_and_hold_no_text(base: str, engine: FakeEngine) -> None:
    stop = Decision(Action.STOP, StopReason.PROBE, 12, 1, 0.93, True)
    engine.script = [
        Delta("reasoning", "SECRET"),
        Delta("content", "WORD"),
        Finished("stop", StopReason.PROBE, Usage(7, 12, 3, handoff_tokens=6), stop),
    ]
    before = metric_values(base)
    body = {"messages": [{"role": "user", "content": "SECRET"}], "model": "fake", "user": "SECRET"}
    assert HTTP.post(f"{base}/v1/chat/completions", json=body).status_code == 200
    after = metric_values(base)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown('desist_stops_total{certified="true",mode="active",reason="probe"}') == 1
    assert grown('desist_tokens_total{kind="reasoning"}') == 12
    assert grown("desist_saved_tokens_estimate_total") == 34
    assert grown('desist_requests_total{route="/v1/chat/completions",status="200"}') == 1
    assert grown('desist_time_to_first_token_seconds_count{channel="content"}') == 1
    assert "SECRET" not in str(after)
    assert "WORD" not in str(after)


def metric_values(base: str) -> dict[str, float]:
    lines = HTTP.get(f"{base}/metrics").text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }


def test_two_apps_do_not_share_metrics() -> None:
    first, second = (create_app(Settings(), engine=FakeEngine()) for _ in range(2))
    first.state.desist.metrics.disconnects.inc()
    assert b"desist_client_disconnects_total 1.0" in first.state.desist.metrics.text()
    assert b"desist_client_disconnects_total 0.0" in second.state.desist.metrics.text()


def test_api_keys() -> None:
    keys = (SecretStr("k-one"), SecretStr("k-two"))
    engine = FakeEngine()
    with live_server(create_app(Settings(api_keys=keys), engine=engine, certificates=[])) as base:
        body = {"messages": [{"role": "user", "content": "x"}]}
        for given_key in (None, "Bearer k-three", "k-one", "Basic k-one"):
            headers = {} if given_key is None else {"authorization": given_key}
            for reply in (
                HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers),
                HTTP.get(f"{base}/v1/models", headers=headers),
            ):
                assert reply.status_code == 401
                assert reply.json()["error"]["type"] == "authentication_error"
                assert "k-" not in reply.text
        good = HTTP.post(f"{base}/v1/chat/completions", json=body, headers={"authorization": "Bearer k-two"})
        assert good.status_code == 200
        assert "authorization" not in engine.requests[0].headers
        assert HTTP.get(f"{base}/healthz").status_code == 200


def test_too_many_at_once() -> None:
    engine = FakeEngine(pause_s=0.2)
    settings_ = Settings(limits=LimitSettings(max_in_flight=1, max_queue=0))

    async def two(base: str) -> list[httpx.Response]:
        body = {"messages": [{"role": "user", "content": "x"}]}
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(
                *(client.post(f"{base}/v1/chat/completions", json=body) for _ in range(2))
            )

    with live_server(create_app(settings_, engine=engine, certificates=[])) as base:
        replies = sorted(asyncio.run(two(base)), key=lambda reply: reply.status_code)
    assert [reply.status_code for reply in replies] == [200, 429]
    assert replies[1].headers["retry-after"] == "1"
    assert "limits.max_in_flight" in replies[1].json()["error"]["message"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "n", "stream", "temperature", "top_p", "top_k", "seed", "stop",
     "max_tokens", "max_completion_tokens", "logprobs", "desist", "reasoning", "reasoning_effort", "thinking",
     "tools",
     "chat_template_kwargs", "thinking_token_budget", "stream_options", "response_format", "user"]
)  # fmt: skip
GOOD: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(FIELDS, JSON, max_size=4), st.sampled_from(["chat/completions", "completions"]))
def test_no_body_makes_the_server_fail(base: str, given_fields: dict[str, Any], route: str) -> None:
    body = {**GOOD, **given_fields}
    reply = HTTP.post(f"{base}/v1/{route}", content=json.dumps(body).encode())
    assert reply.status_code in (200, 400, 404)
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "not_found_error")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40))
def test_no_bytes_make_the_server_fail(base: str, data: bytes) -> None:
    reply = HTTP.post(f"{base}/v1/chat/completions", content=data)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] in ("invalid_json", "missing_field")


def test_header_texts_are_one_ascii_line() -> None:
    assert header_text("two\nlines \u2013 caf\u00e9") == "two lines ? caf?"


def start(app: Any) -> None:
    async def once() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(once())


def test_a_policy_the_engine_cannot_serve_is_refused_at_start() -> None:
    engine = FakeEngine(offers=frozenset({"text"}))
    with pytest.raises(
        NotOffered, match=r"'c' decides by scorer 'probe', which reads hidden.*--engine embedded"
    ):
        start(create_app(Settings(), engine=engine, certificates=[POINT]))
    assert engine.life == ["start", "close"]


def test_a_failed_start_closes_the_engine() -> None:
    engine = FakeEngine(start_error=EngineError("no weights"))
    with pytest.raises(EngineError, match="no weights"):
        start(create_app(Settings(), engine=engine, certificates=[]))
    assert engine.life == ["start", "close"]
