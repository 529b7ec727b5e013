"""Mode off before a server: 200 requests of all kinds, and their answers, arrive with no byte changed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.settings import ControlSettings, ModelSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.raw_upstream import RawUpstream, front
from tests.fakes.server import live_server, wait_for

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
FIELDS: list[dict[str, Any]] = [
    {"stream": True}, {"stream": True, "stream_options": {"include_usage": True,
    "continuous_usage_stats": True}},
    {"n": 3}, {"n": 300}, {"n": "many"}, {"best_of": 2, "n": 2}, {"temperature": 0.10000000000000001},
    {"temperature": 99}, {"temperature": "hot"}, {"top_p": 0}, {"top_k": -1}, {"seed": 2**63}, {"seed": -1.5},
    {"max_tokens": 1}, {"max_tokens": 0}, {"max_completion_tokens": None}, {"stop": ["\n", "Wait", ""]},
    {"stop": {}},
    {"logprobs": True, "top_logprobs": 20}, {"logprobs": 5}, {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
    {"guided_regex": "\\d+"}, {"structured_outputs": {"choice": ["a", "b"]}}, {"logit_bias": {"50256": -100}},
    {"reasoning_effort": "low"}, {"reasoning_effort": "extreme"}, {"reasoning": {"effort": "high"}},
    {"reasoning": {"max_tokens": 128}}, {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    {"thinking": 3},
    {"thinking_token_budget": 64}, {"thinking_budget": 0},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking_budget": 9}}, {"nvext": {"max_thinking_tokens": 5}}, {"budget": 5},
    {"include_reasoning": False}, {"return_token_ids": True}, {"vllm_xargs": {"a": 1, "b": [1.5]}},
    {"priority": -3},
    {"user": "\u00e9\u4e2d\U0001f600"}, {"metadata": {"k": "v\u2028"}}, {"service_tier": "flex"},
    {"store": True},
    {"unknown": {"deep": [[[{"x": None}]]]}}, {"model": "a/b:c"}, {"model": ""}, {"model": 7},
    {"cache_salt": "s"},
    {"lora_request": None}, {"kv_transfer_params": {"a": {}}}, {"echo": True, "suffix": "z"},
    {"modalities": ["text"]},
]  # fmt: skip
MESSAGES: list[Any] = [
    [{"role": "user", "content": "2+2?"}],
    [{"role": "user", "content": [{"type": "text", "text": "what"}, IMAGE]}],
    [{"role": "system", "content": ""}, {"role": "user",
    "content": "\u00fc\u4f60\u597d\U0001f9e0\u200d\u2028 <think>"}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]},
     {"role": "tool", "tool_call_id": "c", "content": "12"}],
    [{"role": "assistant", "content": "<think>\nso", "reasoning_content": "x"}],
    [], "no list", None, [{"content": "no role"}], [{"role": "user", "content": "x" * 70_000}],
]  # fmt: skip
RAW = [
    b"", b"{", b"[]", b"null", b'"text"', b"{}", b"\xff\xfe\x00", b"{\"messages\":[],}", b"   ", b"[" * 5000,
    b'\xef\xbb\xbf{"messages":[{"role":"user","content":"bom"}]}', b'{"a":1}{"b":2}',
    b"\x1f\x8b\x08\x00garbage",
    b'{"messages":[{"role":"user","content":"\\ud83d\\ude00 \\u0041 \\/ "}],'
    b'"messages":[{"role":"user","content":"2"}]}',
    b'{"messages" :\t[ {"role":"user" , "content":"s  p"} ]\r\n,\n"n":1.0,"temperature":1E-2,"seed":-0}\n\n',
    b'{"stream":false,"stream":true,"messages":[{"role":"user","content":"dup"}]}',
    b'{"x":1e400,"y":NaN,"messages":[{"role":"user","content":"not json"}]}',
    b'{"x":123456789012345678901234567890.10,"messages":[{"role":"user","content":"long"}]}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"prompt":[1,2,3]}',
    b'{"prompt":["a","b"],"n":2}',
]  # fmt: skip
REPLIES = (
    "json",
    "sse",
    "gzip",
    "odd",
    "big",
    "400",
    "401",
    "403",
    "404",
    "422",
    "429",
    "500",
    "503",
    "empty",
)


@dataclass(frozen=True)
class Case:
    path: str
    body: bytes
    headers: dict[str, str]


def corpus(count: int = 200, seed: int = 6) -> list[Case]:
    """Every raw body and every field at least once, in shapes drawn by `seed`."""
    draw = random.Random(seed)
    cases = []
    for number in range(count):
        path = draw.choice([CHAT, CHAT, TEXT])
        if number < len(RAW):
            body = RAW[number]
        else:
            whole = dict(FIELDS[number % len(FIELDS)]) | draw.choice([{}, draw.choice(FIELDS)])
            if path == CHAT:
                whole["messages"] = MESSAGES[number % len(MESSAGES)]
            else:
                whole["prompt"] = draw.choice(["p", "", ["a"], [1, 2], [[1], [2]], None, 5])
            names = list(whole)
            draw.shuffle(names)
            style = draw.choice([(None, (",", ":")), (2, None), (None, None), ("\t", (" ,", " : "))])
            text = json.dumps(
                {name: whole[name] for name in names},
                indent=style[0],
                separators=style[1],  # type: ignore[arg-type]
                ensure_ascii=draw.random() < 0.5,
            )
            body = draw.choice(["", " ", "\r\n\t"]).encode() + text.encode("utf-8", "surrogatepass")
        headers = {
            "x-reply": draw.choice(REPLIES),
            "content-type": draw.choice(["application/json", "text/plain"]),
        }
        headers |= draw.choice([{}, {"accept-encoding": "gzip, br"}, {"accept": "text/event-stream"}])
        headers |= draw.choice([{}, {"user-agent": "mine/1"}, {"x-session-id": "s-1"}, {"x-unknown": "a, b"}])
        cases.append(Case(path + draw.choice(["", "?a=%20b&c"]), body, headers))
    return cases


@pytest.fixture(scope="module")
def off(direct: str) -> Iterator[str]:
    settings, engine = front(direct, control=ControlSettings(mode="off"))
    with live_server(create_app(settings, engine=engine, certificates=[])) as address:
        yield address


@pytest.fixture(scope="module")
def active(direct: str) -> Iterator[str]:
    settings, engine = front(direct)
    with live_server(create_app(settings, engine=engine, certificates=[])) as address:
        yield address


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


def exchange(
    http: httpx.Client, base: str, case: Case, **more: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    http.cookies.clear()
    with http.stream("POST", base + case.path, content=case.body, headers=case.headers | more) as reply:
        body = b"".join(reply.iter_raw())
    left_out = {b"date", b"server", b"x-request-id", b"connection", b"transfer-encoding", b"te", b"x-hop"}
    kept = sorted((k.lower(), v) for k, v in reply.headers.raw if k.lower() not in left_out)
    return reply.status_code, [each for each in kept if not each[0].startswith(b"x-desist-")], body


def test_the_corpus_is_varied() -> None:
    cases = corpus()
    assert len(cases) == 200
    assert len({case.body for case in cases}) > 190
    assert {case.headers["x-reply"] for case in cases} == set(REPLIES)
    assert all(raw in {case.body for case in cases} for raw in RAW)


def test_mode_off_changes_no_byte_of_200_varied_requests(
    off: str, direct: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    for case in corpus():
        own = exchange(http, direct, case)
        before = upstream.arrived[-1]
        ours = exchange(http, off, case)
        came = upstream.arrived[-1]
        assert came is not before, case
        assert came.body == case.body == before.body
        assert (came.method, came.target) == (before.method, before.target)
        assert ours == own, case
        mine = {b"host", b"x-request-id", b"connection"}
        assert [each for each in came.headers if each[0] not in mine] == unordered(
            before.headers, came.headers, mine
        )


def unordered(
    wanted: list[tuple[bytes, bytes]], given: list[tuple[bytes, bytes]], mine: set[bytes]
) -> list[tuple[bytes, bytes]]:
    """`wanted` in the order of `given`: the order of different headers means nothing."""
    left = [each for each in wanted if each[0] not in mine]
    names = [each[0] for each in given]
    return sorted(left, key=lambda each: names.index(each[0]) if each[0] in names else -1)


def test_a_corpus_of_another_seed_through_the_header(
    active: str, direct: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    for case in corpus(60, seed=7):
        own = exchange(http, direct, case)
        assert exchange(http, active, case, **{"x-desist-mode": "off"}) == own
        assert upstream.arrived[-1].body == case.body
        assert upstream.arrived[-1].header("x-desist-mode") == []


def test_what_is_ours_is_taken_out_and_no_other_byte(
    active: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    body = b'{ "n":1.0 ,\n "desist" : {"mode": "off"} , "messages":[{"role":"user","content":"\xc3\xa9"}]}\n'
    assert exchange(http, active, Case(CHAT, body, {}))[0] == 200
    assert upstream.arrived[-1].body == b'{ "n":1.0 ,\n "messages":[{"role":"user","content":"\xc3\xa9"}]}\n'


@pytest.mark.parametrize(
    "ours", [{"mode": "sometimes"}, {"mode": "off", "unknown": 1}, {"mode": "off", "alpha": 0.1}, 5]
)
def test_a_bad_object_of_ours_is_refused_in_mode_off_too(ours: Any, off: str, http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "desist": ours}
    reply = http.post(off + CHAT, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("desist")


def test_an_alias_becomes_the_servers_name_and_no_other_byte_changes(
    direct: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    models = {"org/real": ModelSettings(aliases=("short",), mode="off")}
    settings, engine = front(direct, models=models)
    with live_server(create_app(settings, engine=engine, certificates=[])) as base:
        body = (
            b'{ "x" : 1.0,"model" :"short" , "desist":{} ,"messages":[{"role":"user","content":"\xc3\xa9"}] }'
        )
        assert exchange(http, base, Case(CHAT, body, {}))[0] == 200
        wanted = b'{ "x" : 1.0,"model" :"org/real" , "messages":[{"role":"user","content":"\xc3\xa9"}] }'
        assert upstream.arrived[-1].body == wanted
        before = len(upstream.arrived)
        other = body.replace(b"short", b"other")
        assert exchange(http, base, Case(CHAT, other, {}))[0] == 200
        assert len(upstream.arrived) == before  # its mode is the server's, which is not off


def test_a_tenant_that_may_have_no_more_than_off_is_relayed(
    direct: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    settings, engine = front(
        direct,
        api_keys=({"key": "k", "tenant": "t"},),
        tenants={"t": {"mode": "off"}},
        upstream={"api_key": "u"},
    )
    with live_server(create_app(settings, engine=engine, certificates=[])) as base:
        body = b'{"messages":[{"role":"user","content":"x"}]}'
        assert exchange(http, base, Case(CHAT, body, {"authorization": "Bearer k"}))[0] == 200
        assert upstream.arrived[-1].body == body
        assert upstream.arrived[-1].header("authorization") == ["Bearer u"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/up", "/v1/models/no%2Fsuch?a=b"])
def test_models_are_the_servers_own(
    path: str, off: str, active: str, direct: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    own = http.get(direct + path)
    ours = http.get(off + path)
    assert (ours.status_code, ours.content) == (own.status_code, own.content)
    assert upstream.arrived[-1].target == path.encode()
    before = len(upstream.arrived)
    assert http.get(active + "/v1/models").json()["data"][0]["id"] == "fake"
    assert len(upstream.arrived) == before


def test_a_limit_of_ours_holds_in_mode_off(off: str, upstream: RawUpstream, http: httpx.Client) -> None:
    before = len(upstream.arrived)
    body = {"messages": [{"role": "user", "content": "x"}], "desist": {"budget": 4}}
    told = http.post(off + CHAT, json=body).json()
    assert told["desist"]["budget"] == 4
    assert len(upstream.arrived) == before  # it took the way of controlled requests


def test_other_modes_are_not_relayed(active: str, upstream: RawUpstream, http: httpx.Client) -> None:
    before = len(upstream.arrived)
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert (
        http.post(active + CHAT, json=body).json()["choices"][0]["message"]["content"] == "The answer is 4."
    )
    shadow = http.post(active + CHAT, json=body | {"desist": {"mode": "shadow"}})
    assert shadow.json()["desist"]["mode"] == "shadow"
    assert len(upstream.arrived) == before


def test_an_engine_without_a_server_serves_mode_off_itself(http: httpx.Client) -> None:
    settings = Settings(control=ControlSettings(mode="off"))
    with live_server(create_app(settings, engine=FakeEngine(), certificates=[])) as base:
        reply = http.post(base + CHAT, json={"messages": [{"role": "user", "content": "x"}]})
        assert reply.json()["choices"][0]["message"]["content"] == "The answer is 4."


def test_metrics_count_what_is_relayed(off: str, http: httpx.Client) -> None:
    def counted() -> float:
        lines = http.get(f"{off}/metrics").text.splitlines()
        wanted = 'desist_requests_total{route="/v1/chat/completions",status="429"}'
        return next((float(line.split()[-1]) for line in lines if line.startswith(wanted)), 0.0)

    before = counted()
    exchange(http, off, Case(CHAT, b"{}", {"x-reply": "429"}))
    wait_for(
        lambda: counted() == before + 1
    )  # counted at the end of everything, which the client does not await


def test_r67_mode_off_leaves_the_server_with_its_client(
    off: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    before = upstream.left
    body = b'{"stream":true,"messages":[{"role":"user","content":"x"}]}'
    with http.stream("POST", off + CHAT, content=body, headers={"x-reply": "slow"}) as reply:
        next(reply.iter_raw())
    wait_for(lambda: upstream.left == before + 1, 2)
    lines = http.get(f"{off}/metrics").text.splitlines()
    assert any(line.startswith("desist_requests_in_flight 0") for line in lines)


def test_r36_a_contradiction_of_the_server_is_passed_on(off: str, direct: str, http: httpx.Client) -> None:
    case = Case(CHAT, b'{"messages":[{"role":"user","content":"x"}]}', {"x-reply": "contradiction"})
    ours = exchange(http, off, case)
    assert ours == exchange(http, direct, case)
    assert json.loads(ours[2])["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": []},
        "finish_reason": "tool_calls",
    }
