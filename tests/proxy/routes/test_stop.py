"""A running request is stopped by its id: by the key that began it, or an operator's, and by nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from desist.controller.core import StopReason
from desist.data.errors import EngineError
from desist.proxy import Settings, create_app
from desist.proxy.engines.base import Delta, Event, Finished, GenerationRequest, Usage
from desist.proxy.lifecycle.running import Running
from tests.fakes.engine import FakeEngine
from tests.fakes.raw_upstream import RawUpstream, front
from tests.fakes.server import live_server, wait_for

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "stream": True}


@dataclass
class ThinkingEngine(FakeEngine):
    """Thinks until it is stopped, as real engines do that can be stopped."""

    stopped: set[str] = field(default_factory=set)
    refuses: bool = False

    async def stop(self, request_id: str) -> bool:
        if self.refuses:
            raise EngineError("not this one")
        thinking = request_id not in self.stopped
        self.stopped.add(request_id)
        return thinking

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        n = 0
        while request.request_id not in self.stopped:
            yield Delta("reasoning", "hm ")
            n += 1
            await asyncio.sleep(0.005)
        yield Delta("content", "So 4.")
        yield Finished("stop", StopReason.MANUAL, Usage(7, n, 2))


@pytest.fixture
def engine() -> ThinkingEngine:
    return ThinkingEngine()


@pytest.fixture
def base(engine: ThinkingEngine) -> Iterator[str]:
    settings = Settings(api_keys=("one", "two"), operator_keys=("boss",))
    with live_server(create_app(settings, engine=engine, certificates=[])) as address:
        yield address


def stop(base: str, request_id: str, key: str = "one") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{base}/desist/v1/requests/{request_id}/stop", headers=headers, timeout=20)


def begun(http: httpx.Client, base: str, body: dict[str, Any], key: str = "one", **headers: str) -> Any:
    sent = headers | {"authorization": f"Bearer {key}"}
    return http.stream("POST", f"{base}/v1/chat/completions", json=body, headers=sent)


def last(text: str) -> dict[str, Any]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: {")]
    found: dict[str, Any] = json.loads(events[-1])
    return found


def test_the_key_that_began_a_request_stops_it(base: str) -> None:
    with httpx.Client(timeout=20) as http, begun(http, base, BODY) as reply:
        parts = reply.iter_text()
        text = next(parts)
        told = stop(base, reply.headers["x-request-id"])
        assert told.status_code == 200
        assert told.json() | {"id": ""} == {
            "id": "", "object": "desist.stop", "choices": 1, "stopped": 1, "over": 0, "refused": 0,
        }  # fmt: skip
        text += "".join(parts)
    assert last(text)["desist"]["stop_reason"] == "manual"
    assert "So 4." in text
    assert stop(base, reply.headers["x-request-id"]).status_code == 404  # it is over


def test_all_choices_are_stopped_and_told_of(base: str, engine: ThinkingEngine) -> None:
    with (
        httpx.Client(timeout=20) as http,
        begun(http, base, BODY | {"n": 3}, **{"x-request-id": "r-1"}) as reply,
    ):
        parts = reply.iter_text()
        next(parts)
        engine.stopped.add("r-1/1")
        told = stop(base, "r-1").json()
        "".join(parts)
    assert (told["choices"], told["stopped"], told["over"]) == (3, 2, 1)


def test_no_other_key_stops_it_and_an_operator_does(base: str, engine: ThinkingEngine) -> None:
    with httpx.Client(timeout=20) as http, begun(http, base, BODY, **{"x-request-id": "mine"}) as reply:
        parts = reply.iter_text()
        next(parts)
        assert stop(base, "mine", "two").status_code == 404
        assert stop(base, "mine", "none").status_code == 401
        assert httpx.post(f"{base}/desist/v1/requests/mine/stop").status_code == 401
        assert engine.stopped == set()
        assert stop(base, "other").json()["error"]["code"] == "request_not_found"
        assert stop(base, "mine", "boss").json()["stopped"] == 1
        "".join(parts)


def test_an_id_that_two_keys_use_means_each_its_own(base: str, engine: ThinkingEngine) -> None:
    same = {"x-request-id": "same"}
    with httpx.Client(timeout=20) as http, begun(http, base, BODY, "one", **same) as first:
        parts = first.iter_text()
        next(parts)
        with begun(http, base, BODY | {"n": 2}, "two", **same) as second:
            others = second.iter_text()
            next(others)
            assert stop(base, "same", "two").json()["choices"] == 2
            "".join(others)
        assert stop(base, "same", "two").status_code == 404
        assert stop(base, "same", "one").json()["choices"] == 1
        "".join(parts)


def test_an_engine_that_refuses_or_cannot_is_told_with_409(base: str, engine: ThinkingEngine) -> None:
    engine.refuses = True
    with httpx.Client(timeout=20) as http, begun(http, base, BODY, **{"x-request-id": "r"}) as reply:
        parts = reply.iter_text()
        next(parts)
        told = stop(base, "r")
        assert told.status_code == 409
        assert "not this one" in told.json()["error"]["message"]
    slow = FakeEngine(pause_s=0.3)
    with live_server(create_app(Settings(), engine=slow, certificates=[])) as other, httpx.Client() as http:
        with begun(http, other, BODY, **{"x-request-id": "r"}) as reply:
            parts = reply.iter_text()
            next(parts)
            told = stop(other, "r")
        assert told.status_code == 409
        assert "cannot end thinking by hand" in told.json()["error"]["message"]
    wait_for(lambda: not slow.requests or bool(slow.stopped_early))


def test_what_is_passed_on_untouched_cannot_be_stopped() -> None:
    upstream = RawUpstream()
    with live_server(upstream) as direct:
        settings, engine = front(direct)
        with (
            live_server(create_app(settings, engine=engine, certificates=[])) as base,
            httpx.Client() as http,
        ):
            headers = {"x-desist-mode": "off", "x-reply": "slow", "x-request-id": "raw"}
            with begun(http, base, BODY, **headers) as reply:
                parts = reply.iter_raw()
                next(parts)
                told = stop(base, "raw")
            assert told.status_code == 409
            assert "mode off" in told.json()["error"]["message"]
            wait_for(lambda: stop(base, "raw").status_code == 404)


@pytest.mark.parametrize("bad", ["%2e%2e", "a%2Fb", "x" * 500, "%00", "é"])
def test_odd_ids_are_not_found(bad: str, base: str) -> None:
    assert stop(base, bad).status_code == 404


def test_the_registry_forgets_what_has_left() -> None:
    def request(key: str) -> Any:
        headers = [(b"authorization", key.encode())]
        return Request({"type": "http", "headers": headers, "desist.request_id": "r"})

    running = Running()
    one, two = running.enter(request("a"), ("r/0",)), running.enter(request("b"), ("r/0",))
    assert len(running) == 2
    assert running.find("r", one.owner) == (one,)
    assert set(running.find("r", None)) == {one, two}
    running.leave(one)
    running.leave(one)
    assert running.find("r", None) == (two,)
    running.leave(two)
    assert not len(running)
    assert "owner" not in repr(two)
