"""A running proxy that watches its certificates: alarms, shadow, audits, restarts. Over real HTTP."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from desist.calibration.audits import AuditTable, summarise
from desist.calibration.drift_reference import DriftReference, build_reference
from desist.calibration.drift_statistics import trace_statistics
from desist.calibration.monitor_folder import MonitorFolder
from desist.controller.core import Policy
from desist.data.errors import CalibrationError, NotOffered
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.settings import MonitorSettings
from tests.fakes.audited_engine import GAP, AuditedEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for

POLICY = Policy(lam=0.8, certified=True)


def traces(seed: int, n: int, power: float = 1.0) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [(rng.random(int(rng.integers(2, 9))) ** power).tolist() for _ in range(n)]


def reference() -> DriftReference:
    rows = []
    for scores in traces(0, 400):
        places = [GAP * (place + 1) for place in range(len(scores))]
        stop = next((p for p, score in zip(places, scores, strict=True) if score > 0.8), None)
        rows.append(trace_statistics(zip(places, scores, strict=True), stop, GAP * (len(scores) + 1)))
    return build_reference(rows, POLICY)


REFERENCE = reference()
POINT = OperatingPoint(Fraction(1, 20), "consistency", "write", POLICY, "c", drift=REFERENCE)


def app(engine: Any, point: OperatingPoint = POINT, **monitor: Any) -> Any:
    settings = Settings(monitor=MonitorSettings(**monitor))
    return create_app(settings, engine=engine, certificates=[point])


def ask(base: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": fields.pop("text", "2 + 2?")}], **fields}
    reply = HTTP.post(f"{base}/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply


def metric(base: str, line: str) -> float:
    found = [row for row in HTTP.get(f"{base}/metrics").text.splitlines() if row.startswith(line + " ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_drift_ends_in_shadow_and_stays_there_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = AuditedEngine(traces=traces(1, 100) + traces(2, 200, power=2.5))
    with live_server(app(engine, state=tmp_path)) as base:
        for _ in range(100):
            assert ask(base).json()["desist"]["mode"] == "active"
        detail = HTTP.get(f"{base}/readyz").json()["details"]["monitor"]["c"]
        assert detail == {"alarm": None, "drift_traces": 100, "drift_not_watched": None, "audits": 0}
        modes = [ask(base).json()["desist"]["mode"] for _ in range(150)]
        assert modes[0] == "active"
        assert modes[-1] == "shadow"
        assert modes == sorted(modes)  # once in shadow, always in shadow
        told = ask(base).json()["desist"]
        assert "fallen back to shadow" in told["uncontrolled"]
        assert told["stop_reason"] == "natural"
        ready = HTTP.get(f"{base}/readyz")
        assert ready.status_code == 200
        assert "have drifted" in ready.json()["details"]["monitor"]["c"]["alarm"]
        assert metric(base, 'desist_certificate_alarm{certificate="c"}') == 1
        assert metric(base, 'desist_drift_log_evidence{certificate="c"}') > np.log(100_000)
        # Shadow goes on being watched: cut at the stop that it would have made.
        assert ready.json()["details"]["monitor"]["c"]["drift_traces"] == 251
    assert sum("drift alarm for certificate c" in record.message for record in caplog.records) == 1
    again = AuditedEngine(traces=traces(1, 100))
    with live_server(app(again, state=tmp_path)) as base:
        assert ask(base).json()["desist"]["mode"] == "shadow"
    other = build_reference(np.random.default_rng(3).random((200, 4)), POLICY, certificate="")
    with live_server(
        app(again, OperatingPoint(POINT.alpha, POINT.loss, "write", POLICY, "c", drift=other), state=tmp_path)
    ) as base:
        assert ask(base).json()["desist"]["mode"] == "active"
    with live_server(app(again, state=tmp_path / "b", on_alarm="tell", alarm_every=1.5)) as base:
        assert {ask(base).json()["desist"]["mode"] for _ in range(30)} == {"active"}
        assert metric(base, 'desist_certificate_alarm{certificate="c"}') == 1


def test_only_requests_that_the_certificate_speaks_of_are_seen() -> None:
    engine = AuditedEngine(traces=traces(1, 50))
    with live_server(app(engine, gap=10)) as base:
        for fields in ({"temperature": 0.1}, {"desist": {"budget": 9000}}, {"desist": {"mode": "off"}}):
            ask(base, **fields)
        assert _seen(base) == 0
        assert metric(base, 'desist_drift_left_out_total{why="outside"}') >= 2
        ask(base)
        ask(base, n=3)  # one problem
        ask(base, desist={"mode": "shadow"})
        assert _seen(base) == 3
        for _ in range(5):
            ask(base, user="the same one")
        assert _seen(base) == 4


def _seen(base: str) -> int:
    return int(HTTP.get(f"{base}/readyz").json()["details"]["monitor"]["c"]["drift_traces"])


def test_a_certificate_that_is_not_watched_says_why() -> None:
    bare = OperatingPoint(POINT.alpha, POINT.loss, "write", POLICY, "c")
    patient = OperatingPoint(
        POINT.alpha, POINT.loss, "write", Policy(lam=0.8, patience=2, certified=True), "c", drift=REFERENCE
    )
    for point, why, monitor in (
        (bare, "no .drift file", {}),
        (patient, "patience differ", {}),
        (POINT, "monitor.drift is off", {"drift": False}),
    ):
        with live_server(app(AuditedEngine(traces=traces(1, 5)), point, **monitor)) as base:
            ask(base)
            told = HTTP.get(f"{base}/readyz").json()["details"]["monitor"]["c"]
            assert why in told["drift_not_watched"]


def test_audits_keep_verdicts_and_nothing_else(tmp_path: Path) -> None:
    engine = AuditedEngine(traces=traces(4, 60), lose=lambda number: number % 10 == 0)
    with live_server(app(engine, state=tmp_path, audit_rate=1.0, on_alarm="tell")) as base:
        for number in range(60):
            told = ask(base, text=f"a secret question {number % 50}").json()
            assert "audit" not in str(told)
        wait_for(lambda: metric(base, 'desist_audits_total{verdict="same"}') > 0)
        wait_for(
            lambda: (
                sum(
                    metric(base, f'desist_audits_total{{verdict="{word}"}}') for word in ("same", "different")
                )
                == 60
            )
        )
        spent = metric(base, "desist_audit_tokens_total")
        assert spent > 0
        assert metric(base, 'desist_tokens_total{kind="reasoning"}') == sum(_kept(t) for t in engine.traces)
    with MonitorFolder(tmp_path, write=False) as folder:
        records = AuditTable(folder).records()
    assert [record.number for record in records] == list(range(1, 61))
    lost = [number for number in range(60) if number % 10 == 0 and _stops(engine.traces[number])]
    assert [r.number - 1 for r in records if r.verdict == "different"] == lost
    assert [r.stopped for r in records] == [_stops(scores) for scores in engine.traces]
    assert sum(r.extra_tokens for r in records) == spent
    assert summarise(records).repeats == 10
    for path in tmp_path.iterdir():
        assert b"secret" not in path.read_bytes()
        assert b"boxed" not in path.read_bytes()


def _stops(scores: list[float]) -> bool:
    return max(scores) > 0.8


def _kept(scores: list[float]) -> int:
    place = next((place for place, score in enumerate(scores) if score > 0.8), len(scores))
    return GAP * (place + 1)


def test_a_risk_above_alpha_ends_in_shadow() -> None:
    engine = AuditedEngine(traces=[[0.9]], lose=lambda number: number % 2 == 0)
    with live_server(app(engine, audit_rate=1.0, drift=False)) as base:
        wait_for(lambda: ask(base).json()["desist"]["mode"] == "shadow", 20)
        assert "lose more answers" in HTTP.get(f"{base}/readyz").json()["details"]["monitor"]["c"]["alarm"]
        asked = len(engine.requests)
        assert 5 < asked < 60
        ask(base)
        assert not engine.requests[-1].audit  # nothing is stopped, there is nothing to audit


def test_the_coin_falls_before_the_trace_and_only_where_it_may() -> None:
    engine = AuditedEngine(traces=[[0.9]])
    with live_server(app(engine, audit_rate=0.3, drift=False)) as base:
        for _ in range(200):
            ask(base)
        share = sum(request.audit for request in engine.requests)
        assert 30 <= share <= 95
        for fields in ({"temperature": 0.1}, {"desist": {"mode": "shadow"}}, {"desist": {"budget": 5}}):
            for _ in range(20):
                ask(base, **fields)
                assert not engine.requests[-1].audit
        engine.audits_running = 64
        assert not any(ask(base) and engine.requests[-1].audit for _ in range(20))
        assert metric(base, 'desist_audits_total{verdict="skipped"}') == 20


def test_an_audit_whose_client_left_stays_open(tmp_path: Path) -> None:
    from desist.data.errors import EngineError

    class Failing(AuditedEngine):
        async def generate(self, request: Any) -> Any:
            self.requests.append(request)
            raise EngineError("no")
            yield

    with live_server(app(Failing(traces=[[0.9]]), state=tmp_path, audit_rate=1.0)) as base:
        HTTP.post(f"{base}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert metric(base, 'desist_audits_total{verdict="open"}') == 1
    with MonitorFolder(tmp_path, write=False) as folder:
        assert [record.verdict for record in AuditTable(folder).records()] == ["open"]


def test_what_cannot_be_done_is_refused_at_the_start(tmp_path: Path) -> None:
    async def start(made: Any) -> None:
        async with made.router.lifespan_context(made):
            pass

    with pytest.raises(NotOffered, match="audit_rate"):
        asyncio.run(start(app(FakeEngine(), audit_rate=0.1)))
    with MonitorFolder(tmp_path), pytest.raises(CalibrationError, match="another process"):
        asyncio.run(start(app(FakeEngine(), state=tmp_path)))
    asyncio.run(start(app(FakeEngine(), state=tmp_path)))
    asyncio.run(start(app(FakeEngine(), state=tmp_path)))  # the folder was let go of
