"""The kill switch: by an operator's call and by a file, for new requests and for those that run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Control, Mode, Policy
from desist.controller.machine import StopMachine
from desist.data.errors import ControlError, EngineError
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.upstream.cut import TextWatch
from desist.proxy.live.switch import ModeSwitch, read_mode_file
from desist.proxy.settings import ControlSettings, LimitSettings, UpstreamSettings
from desist.proxy.telemetry.metrics import Metrics
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream

ROOT = Path(__file__).resolve().parents[3]
POINT = OperatingPoint(Fraction(1, 20), "consistency", "write", Policy(lam=0.9, certified=True), "c")
BOSS = {"Authorization": "Bearer boss"}


@dataclass
class Capped(FakeEngine):
    """Remembers what it was told; fails where `deaf`."""

    caps: list[str] = field(default_factory=list)
    deaf: bool = False

    async def set_cap(self, mode: Mode) -> None:
        self.caps.append(mode)
        if self.deaf:
            raise EngineError("nobody answers")


def app(engine: Any, **settings: Any) -> Any:
    made = Settings(operator_keys=("boss",), **settings)  # type: ignore[arg-type]
    return create_app(made, engine=engine, certificates=[POINT])


def ask(base: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "2 + 2?"}], **fields}
    reply = HTTP.post(f"{base}/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()["desist"]
    return told


def turn(base: str, mode: str) -> httpx.Response:
    return HTTP.post(f"{base}/desist/v1/mode", json={"mode": mode}, headers=BOSS)


def test_an_operator_turns_it_and_back() -> None:
    engine = Capped()
    with live_server(app(engine, control=ControlSettings(budget=500))) as base:
        assert ask(base)["mode"] == "active"
        assert "mode" not in HTTP.get(f"{base}/readyz").json().get("details", {})
        reply = turn(base, "shadow")
        assert (reply.status_code, reply.json()["cap"], reply.json()["persistent"]) == (200, "shadow", False)
        told = ask(base)
        assert (told["mode"], told["budget"]) == ("shadow", None)
        assert "kill switch" in told["uncontrolled"]
        assert ask(base, desist={"mode": "active"})["mode"] == "shadow"  # lowered, never refused
        assert ask(base, desist={"mode": "off"})["mode"] == "off"
        assert ask(base, desist={"budget": 3})["budget"] == 3  # a client's own limit holds in every mode
        assert HTTP.get(f"{base}/readyz").json()["details"]["mode"]["cap"] == "shadow"
        assert "desist_mode_cap 1.0" in HTTP.get(f"{base}/metrics").text
        assert 'desist_uncontrolled_total{why="kill_switch"}' in HTTP.get(f"{base}/metrics").text
        assert turn(base, "off").json()["cap"] == "off"
        assert ask(base)["mode"] == "off"
        assert turn(base, "active").json()["cap"] == "active"
        assert ask(base)["mode"] == "active"
        assert HTTP.get(f"{base}/desist/v1/mode", headers=BOSS).json()["cap"] == "active"
    assert engine.caps == ["shadow", "off", "active"]


@pytest.mark.parametrize("body", [{}, {"mode": "on"}, {"mode": None}, {"mode": "shadow", "for": 3}, [], "x"])
def test_bodies_that_are_none(body: Any) -> None:
    with live_server(app(Capped())) as base:
        reply = HTTP.post(f"{base}/desist/v1/mode", json=body, headers=BOSS)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]
        assert ask(base)["mode"] == "active"


def test_the_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "mode"
    with live_server(app(Capped(), mode_file=path)) as base:
        assert ask(base)["mode"] == "active"
        path.write_text("shadow\n")
        wait_for(lambda: ask(base)["mode"] == "shadow")
        path.write_text("")  # a file that was only touched is a hand that fell
        assert ask(base)["mode"] == "shadow"
        path.write_text("nonsense")
        wait_for(lambda: "failure" in HTTP.get(f"{base}/readyz").json()["details"]["mode"])
        assert ask(base)["mode"] == "shadow"
        reply = turn(base, "active")
        assert reply.json()["persistent"] is True
        assert path.read_text() == "active\n"
        assert ask(base)["mode"] == "active"
    path.write_text("off")
    with live_server(app(Capped(), mode_file=path)) as base:  # outlives a restart
        assert ask(base)["mode"] == "off"
    path.unlink()
    assert read_mode_file(path) == "active"


def test_two_apps_on_one_file_agree(tmp_path: Path) -> None:
    """As workers do: one is told, the others read it."""
    path = tmp_path / "mode"
    with live_server(app(Capped(), mode_file=path)) as one, live_server(app(Capped(), mode_file=path)) as two:
        assert turn(one, "shadow").status_code == 200
        wait_for(lambda: ask(two)["mode"] == "shadow")
        assert turn(two, "active").status_code == 200
        wait_for(lambda: ask(one)["mode"] == "active")


def test_an_engine_that_does_not_obey_is_told_of_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = Capped(deaf=True)
    with live_server(app(engine)) as base:
        reply = turn(base, "shadow")
        assert "nobody answers" in reply.json()["failure"]
        assert ask(base)["mode"] == "shadow"  # new requests obey all the same
        engine.deaf = False
        wait_for(lambda: HTTP.get(f"{base}/readyz").json()["details"]["mode"].get("failure") is None)
    assert engine.caps[:2] == ["shadow", "shadow"]


@pytest.mark.parametrize("text", ["maybe", "shadow active", "\x00", "off" * 40])
def test_a_file_that_says_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mode"
    path.write_text(text)
    with pytest.raises(ControlError, match="Write off, shadow or active"):
        read_mode_file(path)
    assert ModeSwitch(None, Metrics(), path).cap == "shadow"


@pytest.mark.parametrize("text", ["OFF", " off\n", "off\r\n"])
def test_a_file_that_an_editor_wrote(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mode"
    path.write_text(text)
    assert read_mode_file(path) == "off"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    made = ModeSwitch(None, Metrics(), tmp_path / "file" / "mode")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ControlError, match="cannot be written"):
        asyncio.run(made.turn("shadow"))
    assert made.cap == "shadow"


def test_running_requests_of_an_upstream_are_not_stopped_any_more() -> None:
    """Thinking that goes round is closed in mode active; the switch is turned while it runs."""
    thoughts = tuple("Wait, let me check the sum again: 4+9=13. " for _ in range(120))
    fake = FakeUpstream(thoughts=thoughts, pause_s=0.01)
    with live_server(fake.app()) as upstream:
        settings = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=upstream, self_test=False),
            operator_keys=("boss",),  # type: ignore[arg-type]
        )
        with live_server(create_app(settings)) as base:
            before = ask(base)
            assert before["stop_reason"] == "loop"
            found: list[dict[str, Any]] = []
            thread = threading.Thread(target=lambda: found.append(ask(base)))
            sent = len(fake.sent)
            thread.start()
            wait_for(lambda: len(fake.sent) > sent and fake.sent[sent] > 2)
            assert turn(base, "shadow").status_code == 200
            thread.join(20)
    assert found[0]["stop_reason"] == "natural"
    assert found[0]["reasoning_tokens"] >= len(thoughts)


@pytest.mark.parametrize(
    ("asked", "tenant", "stops_at"),
    [
        ({}, None, None),
        ({"desist": {"budget": 60}}, None, 60),
        ({}, 90, 90),
        ({"reasoning_effort": "low"}, None, None),
    ],
    ids=["the server's", "the client's", "the tenant's ceiling", "an effort's"],
)
def test_what_is_left_of_a_running_budget(
    asked: dict[str, Any], tenant: int | None, stops_at: int | None
) -> None:
    """What the server's settings make of "active" is taken back; what is the request's own stays."""
    fake = FakeUpstream(thoughts=tuple(f"step {n} is done. " for n in range(150)), pause_s=0.01)
    keys: dict[str, Any] = {}
    if tenant is not None:
        keys = {"api_keys": ({"key": "k", "tenant": "t"},), "tenants": {"t": {"budget": tenant}}}
    with live_server(fake.app()) as upstream:
        settings = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=upstream, self_test=False),
            operator_keys=("boss",),  # type: ignore[arg-type]
            control=ControlSettings(budget=50, efforts={"low": 50}),
            **keys,
        )
        with live_server(create_app(settings)) as base:
            found: list[dict[str, Any]] = []

            def run() -> None:
                body = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}], **asked}
                headers = {"authorization": "Bearer k"} if keys else {}
                found.append(
                    HTTP.post(f"{base}/v1/chat/completions", json=body, headers=headers).json()["desist"]
                )

            thread = threading.Thread(target=run)
            thread.start()
            wait_for(lambda: bool(fake.sent) and fake.sent[0] > 2)
            assert turn(base, "shadow").status_code == 200
            assert fake.sent[0] < 50  # the switch was turned before any budget was near
            thread.join(30)
    if stops_at is None:
        assert (found[0]["stop_reason"], found[0]["reasoning_tokens"]) == ("natural", 150)
    else:
        assert found[0]["stop_reason"] == "budget"
        assert stops_at <= found[0]["reasoning_tokens"] <= stops_at * 1.1


@given(
    st.sampled_from(["off", "shadow", "active"]),
    st.sampled_from(["off", "shadow", "active"]),
    st.none() | st.integers(0, 99),
    st.none() | st.integers(-1, 99),
)
def test_lowering_never_raises_a_mode_and_leaves_what_lasts(
    mode: Mode, cap: Mode, budget: int | None, lasting: int | None
) -> None:
    control = Control(mode, budget=budget, lasting=lasting)
    lowered = control.lowered(cap)
    assert lowered.lowered(cap) == lowered
    if ["off", "shadow", "active"].index(cap) >= ["off", "shadow", "active"].index(mode):
        assert lowered is control
    elif mode == "active" and lasting != -1:
        assert (lowered.mode, lowered.budget) == (cap, lasting)
    else:
        assert (lowered.mode, lowered.budget) == (cap, budget)


def test_a_request_that_waited_for_a_place_obeys_too() -> None:
    """Accepted as active, begun after the switch was turned."""
    thoughts = tuple("Wait, let me check the sum again: 4+9=13. " for _ in range(60))
    fake = FakeUpstream(thoughts=thoughts, pause_s=0.01)
    with live_server(fake.app()) as upstream:
        settings = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=upstream, self_test=False),
            operator_keys=("boss",),  # type: ignore[arg-type]
            limits=LimitSettings(max_in_flight=1),
        )
        with live_server(create_app(settings)) as base:
            found: list[dict[str, Any]] = []
            threads = [threading.Thread(target=lambda: found.append(ask(base))) for _ in "ab"]
            for thread in threads:
                thread.start()
            wait_for(lambda: "desist_requests_queued 1.0" in HTTP.get(f"{base}/metrics").text)
            assert turn(base, "shadow").status_code == 200
            for thread in threads:
                thread.join(20)
    assert [told["stop_reason"] for told in found] == ["natural", "natural"]


@given(
    st.lists(st.sampled_from(["so ", "wait, ", "x\n\n", "4+9=13. ", "```", "e"]), max_size=80),
    st.integers(0, 80),
)
def test_text_held_back_for_a_limit_that_is_lifted_is_not_lost(pieces: list[str], at: int) -> None:
    """The reserve for an answer is a limit of mode active; a cut taken before the switch turned stands."""
    machine = StopMachine(Control("active"), max_tokens=60, min_answer_tokens=20, handoff_tokens=2)
    watch = TextWatch(machine, ("wait",), None)
    shown, read = "", ""
    for number, piece in enumerate(pieces):
        if number == at:
            watch.cap("shadow")
        read += piece
        shown += watch.push(piece, number + 1, None)
        if watch.cut is not None:
            assert number < at
            return
    assert shown + watch.flush() == read


@pytest.mark.parametrize("limited", [False, True])
def test_running_requests_of_the_embedded_engine_are_not_stopped_any_more(limited: bool) -> None:
    from desist.controller import StopReason
    from desist.proxy.engines.embedded import Done, Runner
    from tests.proxy.engines.test_embedded_runner import MODEL, LastTap, closing_seed, job

    control = Control("active", Policy(lam=-1.0, warmup_tokens=8))
    runner = Runner(MODEL, probe=LastTap())
    runner.add(job(0, control, seed=closing_seed(30)))
    runner.add(job(1, control, seed=closing_seed(30)))
    events = [event for _ in range(4) for event in runner.step()]
    if limited:
        runner.limit("shadow")
    while runner.busy:
        events += runner.step()
    done = {event.key: event for event in events if isinstance(event, Done)}
    for each in done.values():
        stopped = each.stop_reason is StopReason.PROBE
        assert stopped is not limited
        assert (each.shadow is not None) is limited  # scored all the same


@pytest.mark.slow
def test_the_switch_reaches_all_workers() -> None:
    """`--workers 2`: whichever worker is told, both obey; counts of both are told as one."""
    fake = FakeUpstream()
    with live_server(fake.app()) as upstream:
        command = "from desist.cli import main; main()"
        options = ["serve", "--upstream", upstream, "--port", "0", "--workers", "2", "--json", "--quiet"]
        with subprocess.Popen(
            [sys.executable, "-c", command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"DESIST_OPERATOR_KEYS": "boss", "DESIST_UPSTREAM__SELF_TEST": "false"},
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                base = json.loads(process.stdout.readline())["url"].removesuffix("/v1")

                def modes() -> set[str]:
                    """A fresh connection each, so that both workers are asked."""
                    body = {"messages": [{"role": "user", "content": "hi"}]}
                    found = [
                        httpx.post(f"{base}/v1/chat/completions", json=body, timeout=20) for _ in range(12)
                    ]
                    return {reply.headers["x-desist-mode"] for reply in found}

                assert modes() == {"active"}
                assert turn(base, "shadow").json() | {"default": ""} == {
                    "object": "desist.mode", "cap": "shadow", "default": "", "persistent": False,
                }  # fmt: skip
                assert modes() == {"shadow"}  # at once: the call was answered when both obeyed
                asked = HTTP.get(f"{base}/metrics").text
                rows = [row for row in asked.splitlines() if row.startswith("desist_generations_total")]
                assert sum(float(row.rpartition(" ")[2]) for row in rows) == len(fake.sent)
                assert "desist_mode_cap 1.0" in asked
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
