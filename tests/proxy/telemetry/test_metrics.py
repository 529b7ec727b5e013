"""Metrics: what is counted, under which labels, by one process and several; and the page that lists them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from desist.controller.core import Policy, StopReason
from desist.data.errors import ControlError, EngineError
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.base import Delta, Finished, Usage
from desist.proxy.settings import MetricsSettings, UpstreamSettings
from desist.proxy.settings.pages import table_in
from desist.proxy.telemetry.metric_table import metric_table
from desist.proxy.telemetry.metric_words import WHYS, ModelLabels, why_of
from desist.proxy.telemetry.metrics import Metrics
from desist.proxy.telemetry.middleware import route_of
from desist.proxy.telemetry.port import metrics_port
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream

ROOT = Path(__file__).resolve().parents[3]
POINT = OperatingPoint(Fraction(1, 20), "consistency", "write", Policy(lam=0.9, certified=True), "c")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(base: str, name: str, **labels: str) -> float:
    found = samples(HTTP.get(f"{base}/metrics").text)
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def ask(base: str, **fields: Any) -> int:
    body = {"messages": [{"role": "user", "content": "2 + 2?"}], **fields}
    return HTTP.post(f"{base}/v1/chat/completions", json=body).status_code


@contextmanager
def serving(engine: Any, **settings: Any) -> Iterator[str]:
    with live_server(create_app(Settings(**settings), engine=engine, certificates=[POINT])) as base:
        yield base


def test_r70_thinking_and_answers_are_told_apart() -> None:
    """500 reasoning tokens and no answer: not an empty reply, and no first content token."""
    script = [Delta("reasoning", "hm"), Finished("length", StopReason.LENGTH, Usage(3, 500, 0))]
    with serving(FakeEngine(script)) as base:
        assert ask(base) == 200
        assert ask(base, stream=True) == 200
        first = "desist_time_to_first_token_seconds_count"
        assert value(base, first, channel="reasoning") == 2
        assert value(base, first, channel="content") == 0
        assert value(base, "desist_reasoning_tokens_sum") == 1000
        assert (value(base, "desist_answer_tokens_count"), value(base, "desist_answer_tokens_sum")) == (2, 0)
        assert value(base, "desist_tokens_total", kind="reasoning") == 1000
        assert value(base, "desist_tokens_total", kind="answer") == 0
        stops = {"reason": "length", "mode": "active", "certified": "false"}
        assert value(base, "desist_stops_total", **stops) == 2
        wait_for(lambda: value(base, "desist_time_per_output_token_seconds_count") == 2)


def test_r70_time_to_the_first_token_of_each_channel() -> None:
    with serving(FakeEngine(pause_s=0.03)) as base:
        assert ask(base, stream=True) == 200
        name = "desist_time_to_first_token_seconds"
        assert value(base, f"{name}_count", channel="reasoning") == 1
        assert value(base, f"{name}_count", channel="content") == 1
        reasoning = value(base, f"{name}_sum", channel="reasoning")
        assert 0 < reasoning < value(base, f"{name}_sum", channel="content")


def test_r71_a_budget_that_never_binds_is_not_one_that_fired() -> None:
    """Budget 4096: a trace of 50 tokens ends by itself, one of 20,000 is cut. Two counters, never one."""
    short = [Delta("reasoning", "x"), Finished("stop", StopReason.NATURAL, Usage(1, 50, 3))]
    long = [Delta("reasoning", "x"), Finished("stop", StopReason.BUDGET, Usage(1, 4096, 3))]
    engine = FakeEngine(short)
    with serving(engine) as base:
        assert ask(base, desist={"budget": 4096}) == 200
        assert value(base, "desist_budget_unreached_total") == 1
        assert value(base, "desist_stops_total", reason="budget", mode="active", certified="false") == 0
        engine.script = long
        assert ask(base, thinking_token_budget=4096) == 200
        assert value(base, "desist_budget_unreached_total") == 1
        assert value(base, "desist_stops_total", reason="budget", mode="active", certified="false") == 1
        engine.script = short
        assert ask(base) == 200  # no budget: neither
        assert value(base, "desist_budget_unreached_total") == 1


def test_labels_are_bounded_whatever_clients_send() -> None:
    with serving(FakeEngine()) as base:
        after: list[set[Any]] = []
        for number in range(30):
            word = f"planted{number}"
            HTTP.get(f"{base}/{word}?{word}={word}", headers={"x-request-id": word, "Host": "localhost"})
            HTTP.post(f"{base}/v1/models/{word}", headers={"Authorization": f"Bearer {word}"})
            ask(base, model=word, user=word, reasoning_effort=word, desist={"mode": word})
            ask(base, user=word)
            text = HTTP.get(f"{base}/metrics").text
            assert "planted" not in text
            after.append(set(samples(text)))
        assert after[-1] == after[1]  # after one of each, nothing that clients send makes a new series


def test_models_are_labels_only_once_they_are_served() -> None:
    fake = FakeUpstream()
    with live_server(fake.app()) as upstream:
        behind = UpstreamSettings(url=upstream, self_test=False)
        with live_server(create_app(Settings(engine="upstream", upstream=behind))) as base:

            def told(model: str) -> float:
                return value(base, "desist_generations_total", model=model, mode="active", status="ok")

            wait_for(lambda: ask(base, model="up") == 200 and told("up") > 0)
            assert ask(base, model="made-up-by-a-client") == 200
            wait_for(lambda: told("other") > 0)
            assert "made-up" not in HTTP.get(f"{base}/metrics").text
    labels = ModelLabels()
    labels.learn(f"m{number}" for number in range(1000))
    assert sum(labels.label(f"m{number}") != "other" for number in range(1000)) == 100


def test_how_generations_end() -> None:
    engine = FakeEngine()
    with serving(engine) as base:

        def told(status: str) -> float:
            found = samples(HTTP.get(f"{base}/metrics").text).items()
            return sum(v for (name, labels), v in found
                       if name == "desist_generations_total" and ("status", status) in labels)  # fmt: skip

        assert ask(base) == 200
        engine.script = [EngineError("gone")]
        assert ask(base) == 503
        engine.script = [Delta("content", "a"), EngineError("gone")]
        assert ask(base, stream=True) == 200
        wait_for(lambda: (told("ok"), told("error")) == (1, 2))
        assert value(base, "desist_engine_errors_total") == 2
        assert value(base, "desist_overhead_seconds_count") == 3


def test_attempts_retries_and_failed_continuations_of_an_upstream() -> None:
    fake = FakeUpstream(refuse=(503, b"{}", {}))
    with live_server(fake.app()) as upstream:
        behind = UpstreamSettings(url=upstream, self_test=False, retries=1)
        with live_server(create_app(Settings(engine="upstream", upstream=behind))) as base:
            assert ask(base) == 503
            assert value(base, "desist_upstream_attempts_total", result="busy") == 2
            assert value(base, "desist_retries_total", reason="busy") == 1
            fake.refuse = None
            assert ask(base) == 200
            assert value(base, "desist_upstream_attempts_total", result="ok") == 1
            fake.refuse_continuation = (400, b'{"error": {"message": "no"}}')
            assert ask(base, desist={"budget": 2}) == 400
            assert value(base, "desist_continuation_failures_total") >= 1


def test_scores_are_a_histogram() -> None:
    from tests.fakes.audited_engine import AuditedEngine

    with serving(AuditedEngine(traces=[[0.2, 0.5, 0.97]])) as base:
        assert ask(base) == 200
        assert value(base, "desist_boundary_score_count", scorer="probe") == 3
        assert value(base, "desist_boundary_score_bucket", scorer="probe", le="0.5") == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("the operator's kill switch is at shadow", "kill_switch"),
        ("fallen back to shadow: traces have drifted", "alarm"),
        ("no certificate is loaded: thinking runs unstopped", "no_certificate"),
        ("the certificate for alpha 0.05 never stops: thinking runs unstopped", "never_stops"),
        ("the policy decides by scorer 'x', which this engine does not compute", "scorer"),
        ("something else: planted text", "other"),
        ("", "other"),
    ],
)
def test_reasons_become_words_of_a_list(text: str, why: str) -> None:
    assert why_of(text) == why
    assert why in (*WHYS, "other")


def test_routes_are_a_list() -> None:
    assert route_of("/v1/models/a/b") == "/v1/models/{id}"
    assert route_of("/desist/v1/requests/xyz/stop") == "/desist/v1/requests/{id}/stop"
    assert {route_of(path) for path in ("/", "", "/v1", "/metrics/", "/v1/chat/completions/x")} == {"other"}


def test_a_port_of_their_own() -> None:
    app = create_app(Settings(metrics=MetricsSettings(port=0)), engine=FakeEngine(), certificates=[POINT])
    with live_server(app) as base:
        assert ask(base) == 200
        port = app.state.desist.metrics_port
        text = HTTP.get(f"http://127.0.0.1:{port}/metrics").text
        assert 'desist_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
        with (
            pytest.raises(ControlError, match=r"Give another metrics\.port"),
            metrics_port(MetricsSettings(port=port), Metrics()),
        ):
            pass
    with pytest.raises(Exception, match=r"refused|onnect"):
        HTTP.get(f"http://127.0.0.1:{port}/metrics")


WORKER = """
import sys
from desist.proxy.telemetry.metrics import Metrics
metrics = Metrics()
metrics.requests.labels("/v1/models", "200").inc(int(sys.argv[1]))
metrics.in_flight.set(int(sys.argv[1]))
metrics.reasoning.observe(100)
metrics.tell_cap(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def test_several_workers_tell_one_sum(tmp_path: Path) -> None:
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, number, cap],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number, cap in (("3", "active"), ("4", "shadow"))
    ]  # fmt: skip
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        code = "from desist.proxy.telemetry.metrics import Metrics; print(Metrics().text().decode())"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
    finally:
        for worker in workers:
            worker.communicate("")
    found = samples(done.stdout)
    labels = (("route", "/v1/models"), ("status", "200"))
    assert found["desist_requests_total", labels] == 7
    assert found["desist_requests_in_flight", ()] == 7
    assert found["desist_reasoning_tokens_count", ()] == 2
    assert found["desist_mode_cap", ()] == 1  # the lowest


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert table_in(page) == metric_table(), "run: desist config table metrics --out docs/metrics.md"


def test_every_metric_is_told_and_named_well() -> None:
    metrics = Metrics()
    text = metrics.text().decode()
    for each in metrics.instruments:
        assert f"# TYPE {each.name} {each.kind}" in text
        assert re.fullmatch(r"desist_[a-z_]+", each.name)
        assert each.says.endswith(".")
