"""Log lines: one a request, as text or JSON, without prompts, thinking, answers or keys, come what may."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import StopReason
from desist.data.errors import EngineError
from desist.proxy import Settings, create_app
from desist.proxy.engines.base import Delta, Finished, Usage
from desist.proxy.settings import LogSettings, UpstreamSettings
from desist.proxy.telemetry.logs import JsonFormatter, TextFormatter, one_line, set_up_logs
from desist.proxy.telemetry.record import RequestRecord
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream

SECRETS = {
    "prompt": "planted-prompt-7f3a",
    "thinking": "planted-thinking-91bc",
    "answer": "planted-answer-55de",
    "client key": "planted-client-key-c0ff",
    "wrong key": "planted-wrong-key-1234",
    "upstream key": "planted-upstream-key-beef",
    "operator key": "planted-operator-key-dada",
    "user": "planted-user-8899",
    "header": "planted-header-4242",
}


@contextmanager
def logged(settings: LogSettings) -> Iterator[io.StringIO]:
    """What is written to the log meanwhile; the loggers are put back at the end."""
    root, names = logging.getLogger(), ("desist", "desist.access")
    before = root.handlers[:], root.level, [logging.getLogger(name).level for name in names]
    out = io.StringIO()
    try:
        set_up_logs(settings, out)
        yield out
    finally:
        root.handlers[:], level, levels = before
        root.setLevel(level)
        for name, each in zip(names, levels, strict=True):
            logging.getLogger(name).setLevel(each)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def access(out: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in lines(out) if line["logger"] == "desist.access"]


def test_one_line_a_request_with_what_happened() -> None:
    with logged(LogSettings(format="json")) as out:
        with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[])) as base:
            wait_for(lambda: "desist_info{version" in HTTP.get(f"{base}/metrics").text)
            asked = {"messages": [{"role": "user", "content": "hi"}], "model": "fake", "n": 2}
            headers = {"x-request-id": "my-id-1"}
            assert HTTP.post(f"{base}/v1/chat/completions", json=asked, headers=headers).status_code == 200
            assert HTTP.post(f"{base}/v1/chat/completions", json={"messages": []}).status_code == 400
            assert HTTP.get(f"{base}/no/such/path?key=hush").status_code == 404
            wait_for(lambda: len(access(out)) >= 4)
        done, bad, lost = access(out)[-3:]
    assert done["request_id"] == "my-id-1"
    assert (done["route"], done["method"], done["status"]) == ("/v1/chat/completions", "POST", 200)
    assert (done["model"], done["mode"], done["stop_reason"]) == ("fake", "active", "natural")
    assert (done["reasoning_tokens"], done["answer_tokens"]) == (10, 8)
    assert (done["stream"], done["choices"]) == (False, 2)
    assert done["overhead_ms"] > 0
    assert done["duration_ms"] >= done["overhead_ms"]
    assert (bad["status"], "mode" in bad) == (400, False)
    assert (lost["route"], lost["status"]) == ("other", 404)
    assert "hush" not in out.getvalue()
    assert "no/such" not in out.getvalue()


def test_the_line_of_a_stream_comes_at_its_end() -> None:
    with logged(LogSettings(format="json")) as out:
        with live_server(create_app(Settings(), engine=FakeEngine(pause_s=0.02), certificates=[])) as base:
            asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            with HTTP.stream("POST", f"{base}/v1/chat/completions", json=asked) as reply:
                assert float(reply.headers["x-desist-overhead-ms"]) > 0
                assert not access(out)
                text = reply.read().decode()
            wait_for(lambda: bool(access(out)))
        (line,) = access(out)
    assert line["stream"] is True
    assert line["stop_reason"] == "natural"
    last = [json.loads(each[6:]) for each in text.split("\n\n") if each.startswith("data: {")][-1]
    assert last["desist"]["overhead_ms"] == line["overhead_ms"]


def test_text_lines() -> None:
    with logged(LogSettings()) as out:
        with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[])) as base:
            assert HTTP.get(f"{base}/v1/models").status_code == 200
        wait_for(lambda: "route=/v1/models" in out.getvalue())
    assert out.getvalue().startswith("INFO desist.access: request request_id=")
    with logged(LogSettings(access=False)) as out:
        with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[])) as base:
            assert HTTP.get(f"{base}/v1/models").status_code == 200
        assert out.getvalue() == ""


def _scripts() -> list[FakeEngine]:
    said = [Delta("reasoning", SECRETS["thinking"]), Delta("content", SECRETS["answer"])]
    ended = Finished("stop", StopReason.NATURAL, Usage(1, 1, 1))
    # An error of our own tells what it says; one that nobody expected might repeat a text.
    return [
        FakeEngine([*said, ended]),
        FakeEngine([*said, RuntimeError(f"bad text {SECRETS['answer']!r}")]),
        FakeEngine([ValueError(f"bad prompt {SECRETS['prompt']!r}")]),
        FakeEngine([*said, EngineError("the engine went away")]),
        FakeEngine(said),
    ]


@pytest.mark.parametrize("form", ["json", "text"])
def test_planted_secrets_are_never_logged(form: Any) -> None:
    keys: Any = (SECRETS["client key"],)
    with logged(LogSettings(format=form, level="debug")) as out, ExitStack() as servers:
        fake = FakeUpstream(thoughts=(SECRETS["thinking"],), answer=(SECRETS["answer"],))
        upstream = servers.enter_context(live_server(fake.app()))
        failing = FakeUpstream(refuse=(500, SECRETS["answer"].encode(), {}))
        broken = servers.enter_context(live_server(failing.app()))
        operators: Any = (SECRETS["operator key"],)
        apps = [
            create_app(Settings(api_keys=keys, operator_keys=operators), engine=engine, certificates=[])
            for engine in _scripts()
        ]
        for url in (upstream, broken, "http://127.0.0.1:9"):
            behind = UpstreamSettings(url=url, api_key=SECRETS["upstream key"], retries=0, self_test=False)  # type: ignore[arg-type]
            apps.append(create_app(Settings(engine="upstream", upstream=behind, api_keys=keys)))
        for each in apps:
            base = servers.enter_context(live_server(each))
            for key in ("client key", "wrong key", "operator key"):
                headers = {"Authorization": f"Bearer {SECRETS[key]}", "x-session-id": SECRETS["header"]}
                for more in ({}, {"stream": True}, {"max_tokens": "many"}, {"desist": {"mode": "off"}}):
                    body = {
                        "messages": [{"role": "user", "content": SECRETS["prompt"]}],
                        "user": SECRETS["user"],
                        **more,
                    }
                    HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers)
                HTTP.post(f"{base}/v1/chat/completions", content=SECRETS["prompt"], headers=headers)
                HTTP.post(f"{base}/desist/v1/mode", json={"mode": SECRETS["prompt"]}, headers=headers)
        wait_for(lambda: out.getvalue().count("desist.access") >= 8 * 3 * 6)
    text = out.getvalue()
    assert "RuntimeError" in text
    found = [name for name, secret in SECRETS.items() if secret in text]
    assert found == []
    if form == "json":
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


@given(st.text())
def test_a_line_stays_a_line(text: str) -> None:
    told = one_line(text)
    assert len(told.splitlines()) <= 1
    assert not any(ord(character) < 32 or ord(character) == 127 for character in told)
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (text,), None)
    record.desist_fields = {"name": text}
    for form in (TextFormatter(), JsonFormatter()):
        written = form.format(record)
        assert len(written.splitlines()) == 1
        written.encode("utf-8", "surrogatepass")


def test_an_unexpected_error_is_told_by_type_and_place() -> None:
    try:
        raise KeyError("secret text")
    except KeyError:
        import sys

        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it failed", (), sys.exc_info())
    told = json.loads(JsonFormatter().format(record))
    assert told["error"] == "KeyError"
    assert "test_logs.py" in told["where"][-1]
    assert "secret" not in TextFormatter().format(record)


def test_a_record_counts_waits_apart() -> None:
    now = iter([10.0, 12.5, 12.6, 12.7])
    record = RequestRecord(lambda: next(now))
    assert record.overhead_s is None
    record.handed_on(waited_s=2.0)
    assert record.overhead_s == pytest.approx(0.5)
    assert record.line()["queue_ms"] == 2000
