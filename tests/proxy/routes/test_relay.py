"""Paths that are not ours: listed ones go through as they are, others are refused, however spelt."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy import Settings, create_app
from desist.proxy.relay.paths import DEFAULT_PATHS, PathList, is_forbidden
from desist.proxy.settings import LimitSettings, RelaySettings
from tests.fakes.engine import FakeEngine
from tests.fakes.raw_upstream import RawUpstream, front
from tests.fakes.server import live_server, wait_for

OPERATORS = (
    "abort_requests", "collective_rpc", "pause", "resume", "sleep", "wake_up", "update_weights",
    "is_sleeping",
    "v1/load_lora_adapter", "v1/unload_lora_adapter", "reset_prefix_cache", "reset_mm_cache", "server_info",
    "start_profile", "stop_profile", "scale_elastic_ep", "inference/v1/abort_requests",
    "release_kv_cache_memory",
    "init_weight_transfer_engine", "update_weights_from_disk", "flush_cache", "fault_tolerance/apply",
    "get_world_size", "metrics", "docs", "openapi.json", "lora-adapters", "models/unload",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(direct: str) -> Iterator[str]:
    settings, engine = front(
        direct,
        upstream={"forward_authorization": True},
        limits=LimitSettings(max_body_bytes=3_000_000),
        relay=RelaySettings(paths=(*DEFAULT_PATHS, "/v1/files/*", "/v1/images")),
    )
    with live_server(create_app(settings, engine=engine, certificates=[])) as address:
        yield address


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20, follow_redirects=False) as client:
        yield client


def raw_status(base: str, target: bytes, method: bytes = b"POST") -> tuple[int, bytes]:
    """The status for a request line that no client library would mend; 0: hung up on without a word."""
    place = urlsplit(base)
    with socket.create_connection((place.hostname, place.port), timeout=10) as sock:
        sock.sendall(method + b" " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n")
        sock.sendall(b"Connection: close\r\n\r\n{}")
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # a line that is no HTTP, its body left unread
            while part := sock.recv(65536):
                answer += part
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


@pytest.mark.parametrize("path", [*DEFAULT_PATHS, "/v1/files/a/b.txt"])
def test_a_listed_path_goes_through_byte_for_byte(
    path: str, base: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    body = b'{ "input" : "\xc3\xa9", "n": 1.0, "n": 2 }\r\n'
    headers = {"content-type": "application/json; charset=x", "x-mine": "a, b", "authorization": "Bearer k"}
    with http.stream("POST", f"{base}{path}?a=%2F&b=+&a=", content=body, headers=headers) as reply:
        got = b"".join(reply.iter_raw())
    came = upstream.arrived[-1]
    assert (came.method, came.target, came.body) == ("POST", f"{path}?a=%2F&b=+&a=".encode(), body)
    assert came.header("content-type") == ["application/json; charset=x"]
    assert (came.header("x-mine"), came.header("authorization")) == (["a, b"], ["Bearer k"])
    assert reply.status_code == 200
    assert b'"z":1.0, "z":2, "\\u00e9":"\xc3\xa9" }\n' in got
    assert came.header("x-request-id") == [reply.headers["x-request-id"]]


@pytest.mark.parametrize("kind", ["json", "gzip", "odd", "big", "sse", "empty", "400", "404", "503"])
def test_the_answer_is_the_servers_own(kind: str, base: str, direct: str, http: httpx.Client) -> None:
    replies = []
    for address in (direct, base):
        headers = {"x-reply": kind, "accept-encoding": "gzip"}
        with http.stream("POST", f"{address}/v1/embeddings", content=b"{}", headers=headers) as reply:
            replies.append((reply, b"".join(reply.iter_raw())))
    (own, own_body), (ours, our_body) = replies
    assert (ours.status_code, our_body) == (own.status_code, own_body)
    hop = {"date", "server", "x-request-id", "connection", "te", "x-hop", "transfer-encoding"}
    ours_kept = sorted((k.lower(), v) for k, v in ours.headers.raw if k.lower().decode() not in hop)
    assert ours_kept == sorted((k.lower(), v) for k, v in own.headers.raw if k.lower().decode() not in hop)
    assert not {"te", "x-hop"} & set(ours.headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_methods_and_bodies_stay_what_they_are(
    method: str, base: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    reply = http.request(method, f"{base}/v1/files/x", content=b"abc" if method in ("PUT", "PATCH") else None)
    came = upstream.arrived[-1]
    assert (came.method, came.body) == (method, b"abc" if method in ("PUT", "PATCH") else b"")
    assert reply.status_code == 200
    assert came.header("transfer-encoding") == []


def test_a_streamed_body_is_passed_on_as_it_comes(
    base: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    seen_early = threading.Event()

    def parts() -> Iterator[bytes]:
        yield b"one"
        wait_for(lambda: upstream.parts == [b"one"])  # it has arrived before the rest was sent
        seen_early.set()
        yield b"two" * 100_000

    reply = http.post(f"{base}/v1/audio/transcriptions", content=parts())
    assert reply.status_code == 200
    assert seen_early.is_set()
    assert upstream.arrived[-1].body == b"one" + b"two" * 100_000
    assert upstream.arrived[-1].header("transfer-encoding") == ["chunked"]


def test_the_first_part_of_an_answer_does_not_wait_for_the_second(
    base: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    with http.stream("POST", f"{base}/pooling", content=b"{}", headers={"x-reply": "slow"}) as reply:
        parts = reply.iter_raw()
        assert next(parts).startswith(b": hello")
        assert upstream.go_on is not None
        upstream.go_on._loop.call_soon_threadsafe(upstream.go_on.set)  # type: ignore[attr-defined]
        assert b"".join(parts).endswith(b"data: after\n\n")


def test_r67_the_server_is_left_when_the_client_leaves(
    base: str, upstream: RawUpstream, http: httpx.Client
) -> None:
    before = upstream.left
    with http.stream("POST", f"{base}/pooling", content=b"{}", headers={"x-reply": "slow"}) as reply:
        next(reply.iter_raw())
    wait_for(lambda: upstream.left == before + 1, 2)


def test_an_answer_that_breaks_off_does_not_end_as_if_whole(base: str, http: httpx.Client) -> None:
    with (
        pytest.raises(httpx.RemoteProtocolError),
        http.stream("POST", f"{base}/score", content=b"{}", headers={"x-reply": "broken"}) as reply,
    ):
        list(reply.iter_raw())


def test_a_body_above_the_limit_is_refused(base: str, http: httpx.Client) -> None:
    reply = http.post(f"{base}/v1/embeddings", content=(b"x" * 1_000_000 for _ in range(5)))
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert http.post(f"{base}/v1/embeddings", content=b"x" * 3_100_000).status_code == 413


@pytest.mark.parametrize("path", OPERATORS)
def test_what_changes_the_server_is_never_reached(path: str, base: str, upstream: RawUpstream) -> None:
    before = len(upstream.arrived)
    name = path.encode()
    upper, encoded = name.upper(), b"".join(b"%%%02x" % byte for byte in name)
    tricks = [
        b"/" + name, b"//" + name, b"/" + name + b"/", b"/" + name + b"//", b"/./" + name, b"/v1/../" + name,
        b"/v1/%2e%2e/" + name, b"/v1/embeddings/../../" + name, b"/v1/embeddings/%2E%2E/%2e%2e/" + name,
        b"/v1/embeddings%2f..%2f..%2f" + name, b"/v1/files/../../" + name, b"/v1/files/..%2f..%2f" + name,
        b"/v1/files/" + name, b"/v1/files//" + name, b"/v1/files/%2e%2e/" + name, b"/" + upper,
        b"/v1/files/" + upper, b"/" + encoded, b"/v1/files/" + encoded, b"/%2f" + name, b"\\" + name,
        b"/v1/files\\..\\..\\" + name, b"/v1/files/..;/" + name, b"/" + name + b";x=1",
        b"/" + name + b"?a=/v1/score",
        b"/" + name + b"%00", b"/" + name + b"%20", b"/v1/embeddings;/../../" + name,
        b"/v1/files/%252e%252e/" + name,
        b"http://127.0.0.1/" + name, b"/v1/files/.../" + name,
    ]  # fmt: skip
    for target in tricks:
        for method in (b"POST", b"GET"):
            status, _ = raw_status(base, target, method)
            ours = path in ("metrics", "openapi.json") and method == b"GET"  # what the proxy says of itself
            assert ours or status in (0, 400, 403, 404, 405), (target, method, status)
    assert len(upstream.arrived) == before


@pytest.mark.parametrize(
    "target",
    [b"/v1/embeddings/", b"/v1//embeddings", b"//v1/embeddings", b"/v1/Embeddings", b"/v1/%65mbeddings",
    b"/v1/images/",
     b"/v1/images/x", b"/v1/files", b"/v1/files/", b"/v1/files/a//b", b"/v1/embeddings/x", b"/nope",
     b"/v1/files/a%2fb",
     b"/tokenize", b"/detokenize", b"/version", b"/load", b"/v1/messages", b"/invocations",
     b"/inference/v1/generate"],
)  # fmt: skip
def test_only_the_very_path_that_is_listed(target: bytes, base: str, upstream: RawUpstream) -> None:
    before = len(upstream.arrived)
    status, answer = raw_status(base, target)
    assert status == 404
    assert b'"error"' in answer
    assert b"path_not_found" in answer
    assert len(upstream.arrived) == before


@pytest.mark.parametrize(
    "entry",
    ["/pause", "/v1/files/../pause", "v1/embeddings", "/v1/embeddings/", "/*", "/v1/%70ause", "/Sleep", "",
    "/a b",
     "/v1/load_lora_adapter", "/server_info", "/api/pull", "/update_weights/*", "/reset-prefix-cache",
     "/a//b", "/./a"],
)  # fmt: skip
def test_settings_cannot_list_what_must_not_be_listed(entry: str) -> None:
    with pytest.raises(ValueError, match=r"plain path|never passed on"):
        RelaySettings(paths=(entry,))


@given(st.text(alphabet="/.%2eEfFpause\\;?#_-~:aA", max_size=24))
def test_no_spelling_of_an_operators_path_is_listed(path: str) -> None:
    listed = PathList(("/v1/files/*", "/a/*", "/v1/embeddings"))
    if path in listed:
        assert not is_forbidden(path)
        assert "//" not in path
        assert "%" not in path
        assert not {".", ".."} & set(path.split("/"))


def test_keys_are_asked_for_on_every_path_and_stay_here(direct: str, upstream: RawUpstream) -> None:
    settings, engine = front(direct, upstream={"api_key": "theirs"}, api_keys=("ours",))
    app = create_app(settings, engine=engine, certificates=[])
    with live_server(app) as base, httpx.Client() as http:
        before = len(upstream.arrived)
        for path in ("/v1/embeddings", "/nope", "/pause"):
            assert http.post(base + path, content=b"{}").status_code == 401
            assert http.post(base + path, headers={"authorization": "Bearer no"}).status_code == 401
        assert len(upstream.arrived) == before
        given = {"authorization": "Bearer ours", "x-desist-mode": "off"}
        assert http.post(f"{base}/v1/embeddings", content=b"{}", headers=given).status_code == 200
        assert upstream.arrived[-1].header("authorization") == ["Bearer theirs"]
        assert upstream.arrived[-1].header("x-desist-mode") == []
        assert http.post(f"{base}/pause", headers=given).status_code == 404


def test_an_engine_without_a_server_behind_says_so(http: httpx.Client) -> None:
    with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[])) as base:
        reply = http.post(f"{base}/v1/embeddings", json={})
        assert reply.status_code == 404
        assert "no server stands behind" in reply.json()["error"]["message"]
        assert http.get(f"{base}/v1/chat/completions").status_code == 405


def test_an_unreachable_server_is_told_with_502(http: httpx.Client) -> None:
    settings, engine = front("http://127.0.0.1:9")
    with live_server(create_app(settings, engine=engine, certificates=[])) as base:
        reply = http.post(f"{base}/v1/embeddings", json={})
        assert reply.status_code == 502
        assert "cannot be reached" in reply.json()["error"]["message"]
