"""The life of a request: hanging up in every phase (R67), heartbeats (R68), errors in a stream (R69), time
limits."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.settings import LimitSettings, StreamSettings, UpstreamSettings
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.slow_upstream import SlowUpstream
from tests.fakes.upstream import FakeUpstream, Fault, served

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}]}


@contextmanager
def proxy(behind: str, /, **settings: Any) -> Iterator[str]:
    server = UpstreamSettings(url=behind, self_test=False, **settings.pop("upstream", {}))
    with live_server(create_app(Settings(engine="upstream", upstream=server, **settings))) as base:
        yield base


@contextmanager
def asking(base: str, body: Mapping[str, Any]) -> Iterator[socket.socket]:
    """A client that has sent its request and reads nothing yet."""
    address, data = urlsplit(base), json.dumps(body).encode()
    with socket.create_connection((str(address.hostname), address.port or 0)) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        yield sock


def counted(base: str, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = HTTP.get(f"{base}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{re.escape(name)}[ {{]", line))


def events(text: str) -> list[Any]:
    """The data of all events; every block must be a whole event or a whole comment."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block == ": ping" or block.startswith("data: ") for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks if block != ": ping"]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


PHASES = {
    "before_headers": SlowUpstream(headers_after_s=30),
    "before_first_chunk": SlowUpstream(first_after_s=30),
    "in_the_stream": SlowUpstream(),
    "in_the_continuation": SlowUpstream(every_s=0.01, continued_after_s=30),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", PHASES)
def test_r67_hanging_up_stops_the_upstream(phase: str, stream: bool) -> None:
    upstream = PHASES[phase]
    upstream.calls.clear()
    upstream.left.clear()
    upstream.begun = 0
    calls = 2 if phase == "in_the_continuation" else 1
    body = ASK | {"stream": stream}
    if calls == 2:
        body |= {"desist": {"budget": 8}}
    with upstream.served() as behind, proxy(behind) as base:
        with asking(base, body) as sock:
            wait_for(lambda: len(upstream.calls) == calls)
            if phase == "in_the_stream":
                wait_for(lambda: upstream.begun >= 3)
                if stream:
                    assert b"200 OK" in sock.recv(4096)
        left = time.monotonic()
        wait_for(lambda: len(upstream.left) == calls)
        assert upstream.left[-1] - left < 0.5
        wait_for(lambda: counted(base, "desist_requests_in_flight") == 0)
        wait_for(lambda: 'route="/v1/chat/completions",status="499"' in HTTP.get(f"{base}/metrics").text)
        assert counted(base, "desist_client_disconnects_total") == 1
        assert len(upstream.calls) == calls


def test_r67_no_continuation_is_begun_for_nobody() -> None:
    upstream = SlowUpstream(every_s=0.05)
    with upstream.served() as behind, proxy(behind) as base:
        with asking(base, ASK | {"stream": True, "desist": {"budget": 12}}):
            wait_for(lambda: upstream.begun >= 3)
        wait_for(lambda: len(upstream.left) == 1)
        time.sleep(1.0)  # the budget would have been reached by now
        assert len(upstream.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_r67_whoever_leaves_the_queue_costs_nothing(stream: bool) -> None:
    upstream = SlowUpstream()
    limits = LimitSettings(max_in_flight=1)
    with upstream.served() as behind, proxy(behind, limits=limits) as base:
        with asking(base, ASK | {"stream": True}):
            wait_for(lambda: len(upstream.calls) == 1)
            with asking(base, ASK | {"stream": stream}):
                wait_for(lambda: counted(base, "desist_requests_queued") == 1)
            wait_for(lambda: counted(base, "desist_requests_queued") == 0)
            assert counted(base, "desist_client_disconnects_total") == 1
        wait_for(lambda: counted(base, "desist_requests_in_flight") == 0)
        time.sleep(0.2)
        assert len(upstream.calls) == 1


def test_the_queue_is_bounded_and_waits_only_so_long() -> None:
    upstream = SlowUpstream()
    limits = LimitSettings(max_in_flight=1, max_queue=1, queue_s=0.5)
    with upstream.served() as behind, proxy(behind, limits=limits) as base:
        with asking(base, ASK | {"stream": True}):
            wait_for(lambda: len(upstream.calls) == 1)
            with asking(base, ASK) as waiting:
                wait_for(lambda: counted(base, "desist_requests_queued") == 1)
                full = HTTP.post(base + CHAT, json=ASK)
                assert (full.status_code, full.json()["error"]["code"]) == (429, "overloaded")
                assert "limits.max_queue" in full.json()["error"]["message"]
                assert int(full.headers["retry-after"]) >= 1
                late = waiting.recv(65536)
                while b"limits.queue_s" not in late and (more := waiting.recv(65536)):
                    late += more
                assert b"503 Service Unavailable" in late
                assert b"retry-after:" in late.lower()
                assert b"limits.queue_s" in late
        assert counted(base, "desist_requests_refused_total") == 2


def test_a_place_goes_to_whoever_waits() -> None:
    upstream = SlowUpstream(every_s=0.01, chunks=20)
    with upstream.served() as behind, proxy(behind, limits=LimitSettings(max_in_flight=1)) as base:
        with asking(base, ASK | {"stream": True}):
            wait_for(lambda: len(upstream.calls) == 1)
            assert HTTP.post(base + CHAT, json=ASK).status_code == 200
        assert len(upstream.calls) == 2


def test_r68_beats_before_the_first_byte_and_between_events() -> None:
    upstream = SlowUpstream(headers_after_s=0.5, every_s=0.35, chunks=3)
    beats = StreamSettings(heartbeat_s=0.1)
    with upstream.served() as behind, proxy(behind, stream=beats) as base:
        with httpx.stream("POST", base + CHAT, json=ASK | {"stream": True}, timeout=20) as reply:
            assert reply.status_code == 200
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.headers["x-accel-buffering"] == "no"
            assert "content-length" not in reply.headers
            parts = list(reply.iter_text())
        text = "".join(parts)
        assert parts[0] == ": ping\n\n"
        assert text.index("data: ") > text.index(": ping\n\n", 1)  # more than one before the first event
        assert ": ping" in text[text.index("data: ") : text.index("[DONE]")]
        assert events(text)[-1] == "[DONE]"
        assert counted(base, "desist_time_to_first_token_seconds_count") == 2  # of reasoning, of content
        assert counted(base, "desist_time_to_first_token_seconds_sum") > 0.45 + 1.0


def test_r68_an_error_after_a_beat_is_an_event() -> None:
    upstream = SlowUpstream(
        headers_after_s=0.4, refuse=(429, b'{"error": {"message": "slow down", "code": 429}}')
    )
    with upstream.served() as behind, proxy(behind, stream=StreamSettings(heartbeat_s=0.1)) as base:
        reply = HTTP.post(base + CHAT, json=ASK | {"stream": True})
        assert reply.status_code == 200
        assert ": ping" in reply.text
        told, done = events(reply.text)
        assert (told["error"]["status"], done) == (429, "[DONE]")
        assert "slow down" in told["error"]["message"]


def test_r68_no_beats_where_they_are_off() -> None:
    upstream = SlowUpstream(headers_after_s=0.4, every_s=0.2, chunks=2)
    with upstream.served() as behind, proxy(behind, stream=StreamSettings(heartbeat_s=0)) as base:
        assert ": ping" not in HTTP.post(base + CHAT, json=ASK | {"stream": True}).text


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        (Fault("status", status=400, body=b'{"error": {"message": "bad", "code": 400}}'), 400, "bad"),
        (Fault("status", status=400, body=b'{"object": "error", "message": "old", "code": 400}'), 400, "old"),
        (Fault("status", status=503, body=b"<html>busy</html>"), 503, "busy"),
        (Fault("status", status=418, body=b'{"error": "plain"}'), 418, "plain"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_r69_an_early_error_keeps_its_status(fault: Fault, status: int, says: str, stream: bool) -> None:
    with served(FakeUpstream(faults=[fault])) as behind, proxy(behind, upstream={"retries": 0}) as base:
        reply = HTTP.post(base + CHAT, json=ASK | {"stream": stream})
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["reset", "kill", "half_event", "error_event", "old_error_event", "plain_error_event", "end"]
)
@pytest.mark.parametrize("stream", [True, False])
def test_r69_a_late_error_is_one_event_and_no_clean_end(kind: Any, stream: bool) -> None:
    with served(FakeUpstream(faults=[Fault(kind, after=3)])) as behind, proxy(behind) as base:
        reply = HTTP.post(base + CHAT, json=ASK | {"stream": stream})
    if not stream:
        assert reply.status_code >= 400
        assert reply.json()["error"]["message"]
        return
    assert reply.status_code == 200
    *pieces, told, done = events(reply.text)
    assert done == "[DONE]"
    assert told["error"]["message"]
    assert all("error" not in piece for piece in pieces)
    assert all(choice["finish_reason"] is None for piece in pieces for choice in piece["choices"])


def test_r24_chunk_borders_are_kept() -> None:
    fake = FakeUpstream(
        thoughts=("Let me", " check ", "it", " \N{ROBOT FACE}", "!"), answer=("It", " is", " 4.")
    )
    with served(fake) as behind, proxy(behind) as base:
        text = HTTP.post(base + CHAT, json=ASK | {"stream": True}).text
    deltas = [piece["choices"][0]["delta"] for piece in events(text)[:-1]]
    assert [d["reasoning"] for d in deltas if "reasoning" in d] == list(fake.thoughts)
    assert [d["content"] for d in deltas if d.get("content")] == list(fake.answer)


def test_r24_characters_split_between_reads_stay_whole() -> None:
    fake = FakeUpstream(thoughts=("\N{ROBOT FACE}", "\u00e4"), faults=[Fault("split_bytes")])
    with served(fake) as behind, proxy(behind) as base:
        text = HTTP.post(base + CHAT, json=ASK | {"stream": True}).text
    deltas = [piece["choices"][0]["delta"] for piece in events(text)[:-1]]
    assert [d["reasoning"] for d in deltas if "reasoning" in d] == list(fake.thoughts)


@pytest.mark.parametrize("n", [1, 2])
def test_one_end_and_one_name_over_both_calls(n: int) -> None:
    fake = FakeUpstream()
    with served(fake) as behind, proxy(behind) as base:
        body = ASK | {
            "stream": True,
            "n": n,
            "desist": {"budget": 2},
            "stream_options": {"include_usage": True},
        }
        text = HTTP.post(base + CHAT, json=body).text
    assert len(fake.bodies) == 2 * n
    assert text.count("[DONE]") == 1
    *pieces, done = events(text)
    assert done == "[DONE]"
    assert len({(piece["id"], piece["created"], piece["model"]) for piece in pieces}) == 1
    choices = [choice for piece in pieces for choice in piece["choices"]]
    ends = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
    assert sorted(ends) == list(range(n))
    for index in range(n):  # nothing after its end
        assert [c for c in choices if c["index"] == index][-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["x-desist-timeout", "x-desist-first-byte-timeout"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_limit_before_the_first_byte_is_504(name: str, stream: bool) -> None:
    upstream = SlowUpstream(headers_after_s=30)
    with upstream.served() as behind, proxy(behind) as base:
        reply = HTTP.post(base + CHAT, json=ASK | {"stream": stream}, headers={name: "0.3"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        assert name in reply.json()["error"]["message"]
        wait_for(lambda: len(upstream.left) == 1)
        assert counted(base, "desist_client_disconnects_total") == 0


@pytest.mark.parametrize(("name", "upstream"), [
    ("x-desist-timeout", SlowUpstream()),
    ("x-desist-idle-timeout", SlowUpstream(every_s=30)),
])  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_a_limit_in_the_stream_is_an_event(name: str, upstream: SlowUpstream, stream: bool) -> None:
    upstream.left.clear()
    with upstream.served() as behind, proxy(behind) as base:
        reply = HTTP.post(base + CHAT, json=ASK | {"stream": stream}, headers={name: "0.8"})
        wait_for(lambda: len(upstream.left) == 1)
    if not stream:
        assert reply.status_code == 504
        return
    *pieces, told, done = events(reply.text)
    assert (told["error"]["status"], told["error"]["code"], done) == (504, "timeout", "[DONE]")
    assert len(pieces) >= 2
    assert all(choice["finish_reason"] is None for piece in pieces for choice in piece["choices"])


def test_a_client_asks_for_less_time_but_never_for_more() -> None:
    upstream = SlowUpstream(headers_after_s=30)
    with upstream.served() as behind, proxy(behind, limits=LimitSettings(total_s=0.4)) as base:
        reply = HTTP.post(base + CHAT, json=ASK, headers={"x-desist-timeout": "100"})
        assert reply.status_code == 504
        assert "0.4 s" in reply.json()["error"]["message"]
        for bad in ("0", "-1", "soon", "nan", "inf"):
            reply = HTTP.post(base + CHAT, json=ASK, headers={"x-desist-timeout": bad})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-desist-timeout")
    assert len(upstream.calls) == 1


def test_an_upstream_that_is_not_there_is_502() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with proxy(f"http://127.0.0.1:{port}", upstream={"retries": 0}) as base:
        for stream in (True, False):
            assert HTTP.post(base + CHAT, json=ASK | {"stream": stream}).status_code == 502
