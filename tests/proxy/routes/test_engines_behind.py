"""The engines themselves: what they pass on, where they stop by hand, and responses under their control."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.engines.build import build_engine
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.embedded import EmbeddedEngine
from desist.proxy.engines.vllm.beside.engine import VllmEngine
from desist.proxy.relay.relay import relay_target
from desist.proxy.settings import ControlSettings, UpstreamSettings, VllmSettings
from tests.fakes.raw_upstream import RawUpstream
from tests.fakes.server import HTTP, live_server
from tests.fakes.upstream import FakeUpstream, served


def test_each_engine_can_be_asked_to_stop() -> None:
    upstream = UpstreamSettings(url="http://127.0.0.1:9")
    engines = [
        build_engine(Settings(engine="upstream", upstream=upstream)),
        EmbeddedEngine(threads=1),
        VllmEngine(Settings(engine="vllm", upstream=upstream)),
    ]
    assert all(callable(getattr(engine, "stop", None)) for engine in engines)


def test_a_vllm_that_is_not_started_has_no_server_to_pass_on_to() -> None:
    settings = Settings(engine="vllm", upstream=UpstreamSettings(url="http://127.0.0.1:9"))
    app = create_app(settings, engine=VllmEngine(settings), certificates=[])
    assert relay_target(app.state.desist) is None


def test_the_upstream_engine_passes_on_and_relays_mode_off() -> None:
    server = RawUpstream()
    with live_server(server) as direct:
        upstream = UpstreamSettings(url=direct + "/v1", self_test=False)
        settings = Settings(engine="upstream", upstream=upstream, control=ControlSettings(mode="off"))
        with live_server(create_app(settings)) as base:
            body = b'{ "messages":[{"role":"user","content":"x"}],"n":1.0 }'
            assert HTTP.post(f"{base}/v1/chat/completions", content=body).status_code == 200
            assert server.arrived[-1].body == body
            assert HTTP.post(f"{base}/v1/embeddings", content=b"{ }").status_code == 200
            assert server.arrived[-1].body == b"{ }"
            assert HTTP.post(f"{base}/pause", content=b"{}").status_code == 404


def test_the_upstream_engine_stops_a_running_request() -> None:
    fake = FakeUpstream(thoughts=tuple(f"{n}. " for n in range(400)), pause_s=0.01, token_ids=True)
    with served(fake) as direct:
        settings = Settings(engine="upstream", upstream=UpstreamSettings(url=direct + "/v1", self_test=False))
        body = {"model": "up", "messages": [{"role": "user", "content": "x"}], "stream": True}
        with (
            live_server(create_app(settings)) as base,
            httpx.Client(timeout=20) as http,
            http.stream("POST", f"{base}/v1/chat/completions", json=body) as reply,
        ):
            parts = reply.iter_text()
            text = next(parts)
            while '"reasoning":"3. "' not in text:
                text += next(parts)
            told = http.post(f"{base}/desist/v1/requests/{reply.headers['x-request-id']}/stop")
            text += "".join(parts)
    assert (told.status_code, told.json()["stopped"]) == (200, 1)
    assert '"stop_reason":"manual"' in text
    assert "is 4." in text
    assert '"reasoning":"399. "' not in text


def test_a_response_through_the_upstream_engine_is_controlled() -> None:
    fake = FakeUpstream(thoughts=tuple(f"{n}. " for n in range(40)), token_ids=True)
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    with served(fake) as direct:
        settings = Settings(engine="upstream", upstream=UpstreamSettings(url=direct + "/v1", self_test=False))
        with (
            live_server(create_app(settings)) as base,
            openai.OpenAI(base_url=base + "/v1", api_key="k") as client,
        ):
            whole = client.responses.create(model="up", input="x", extra_body={"desist": {"budget": 5}})
            fake.tool = {"name": "f", "arguments": "{}"}
            called = client.responses.create(model="up", input="x", tools=[tool])
            with client.responses.stream(model="up", input="x", tools=[tool]) as streamed:
                final = streamed.get_final_response()
    assert whole.to_dict()["desist"]["stop_reason"] == "budget"  # type: ignore[index]
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens < 20
    assert whole.output_text == "So it is 4."
    for reply in (called, final):
        assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
        assert reply.output[-1].to_dict()["arguments"] == "{}"
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "x"}]


def test_vllm_with_the_plugin_stops_and_passes_on() -> None:
    pytest.importorskip("torch", reason="the fake vLLM runs the real plugin")
    from tests.fakes.vllm_server import PROFILE, FakeVllm

    fake = FakeVllm(script="12 + " * 400, pause_s=0.002)
    with live_server(fake.app()) as direct:
        settings = Settings(
            engine="vllm",
            model=str(builtin_model()),
            upstream=UpstreamSettings(url=direct),
            vllm=VllmSettings(
                profile=PROFILE.name, events=fake.publisher.endpoint, commands=fake.inbox.endpoint, hello_s=5
            ),
        )
        body = {"messages": [{"role": "user", "content": "5 + 7?"}], "stream": True, "max_tokens": 900}
        app = create_app(settings, certificates=[])
        with live_server(app) as base, httpx.Client(timeout=20) as http:
            where = f"{base}/desist/v1/requests"
            controlled = body | {"desist": {"budget": 800}}
            with http.stream("POST", f"{base}/v1/chat/completions", json=controlled) as reply:
                parts = reply.iter_text()
                text = next(parts)
                told = http.post(f"{where}/{reply.headers['x-request-id']}/stop")
                text += "".join(parts)
            off = {"x-desist-mode": "off"}
            with http.stream("POST", f"{base}/v1/chat/completions", json=body, headers=off) as reply:
                parts = reply.iter_text()
                next(parts)
                refused = http.post(f"{where}/{reply.headers['x-request-id']}/stop")
            passed_on = relay_target(app.state.desist)
    assert (told.status_code, told.json()["stopped"]) == (200, 1)
    assert '"stop_reason":"manual"' in text
    assert refused.status_code == 409
    assert passed_on is not None
    assert passed_on.url == direct + "/v1"
