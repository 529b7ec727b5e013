"""Several workers are one to whoever asks: stops, kept responses, the mode, and the limits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from desist.data.errors import ControlError, EngineError
from desist.proxy import Settings, create_app
from desist.proxy.errors import ApiError
from desist.proxy.lifecycle.admission import Admission
from desist.proxy.lifecycle.shared_places import SharedPlaces
from desist.proxy.lifecycle.team_hub import Hub
from desist.proxy.lifecycle.team_line import Line
from desist.proxy.lifecycle.team_member import Membership
from desist.proxy.responses.store import ResponseStore
from desist.proxy.settings import LimitSettings, UpstreamSettings
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.upstream import FakeUpstream

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}]}
BOSS = {"Authorization": "Bearer boss"}


@contextmanager
def team(tmp_path: Path, upstream: str, **settings: Any) -> Iterator[tuple[Hub, str, str]]:
    """Two apps as two workers would be, and what they have in common."""
    made = Settings(
        engine="upstream",
        upstream=UpstreamSettings(url=upstream, self_test=False),
        operator_keys=("boss",),  # type: ignore[arg-type]
        **settings,
    )
    hub = Hub(ResponseStore(8, 2**20, 60))

    @contextmanager
    def member(row: int) -> Iterator[str]:
        ours, theirs = socket.socketpair()
        hub.adopt(ours)
        membership = Membership(theirs, SharedPlaces(tmp_path / "places", row, 2))
        with live_server(create_app(made, membership=membership)) as base:
            yield base

    try:
        with member(0) as one, member(1) as two:
            yield hub, one, two
    finally:
        hub.close()


def test_a_request_is_stopped_wherever_it_runs(tmp_path: Path) -> None:
    fake = FakeUpstream(thoughts=("so it is. ",) * 300, pause_s=0.02)
    with live_server(fake.app()) as upstream, team(tmp_path, upstream) as (_, one, two):
        found: list[dict[str, Any]] = []

        def ask() -> None:
            headers = {"x-request-id": "mine"}
            found.append(httpx.post(one + CHAT, json=ASK, headers=headers, timeout=30).json())

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for(lambda: bool(fake.sent) and fake.sent[0] > 3)
        stranger = {"authorization": "Bearer other"}
        refused = HTTP.post(f"{two}/desist/v1/requests/mine/stop", headers=stranger)
        assert refused.status_code == 404
        told = HTTP.post(f"{two}/desist/v1/requests/mine/stop")
        assert (told.status_code, told.json()["choices"], told.json()["stopped"]) == (200, 1, 1)
        thread.join(20)
        assert found[0]["desist"]["stop_reason"] == "manual"
        assert found[0]["choices"][0]["message"]["content"]
        assert HTTP.post(f"{two}/desist/v1/requests/mine/stop", headers=BOSS).status_code == 404


def test_responses_are_kept_for_all(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with live_server(fake.app()) as upstream, team(tmp_path, upstream) as (_, one, two):
        first = HTTP.post(f"{one}/v1/responses", json={"model": "up", "input": "2 + 2?"}).json()
        assert first["store"] is True
        assert HTTP.get(f"{two}/v1/responses/{first['id']}").json() == first
        more = {"model": "up", "input": "And 3 + 3?", "previous_response_id": first["id"]}
        assert HTTP.post(f"{two}/v1/responses", json=more).status_code == 200
        assert [each["role"] for each in fake.bodies[-1]["messages"]] == ["user", "assistant", "user"]
        stranger = {"authorization": "Bearer other"}
        assert HTTP.get(f"{two}/v1/responses/{first['id']}", headers=stranger).status_code == 404
        assert HTTP.delete(f"{two}/v1/responses/{first['id']}").json()["deleted"] is True
        assert HTTP.get(f"{one}/v1/responses/{first['id']}").status_code == 404


def test_the_mode_reaches_all_before_the_call_is_answered(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with live_server(fake.app()) as upstream, team(tmp_path, upstream) as (hub, one, two):
        for base, mode in ((one, "shadow"), (two, "off"), (one, "active"), (two, "shadow")):
            told = HTTP.post(f"{base}/desist/v1/mode", json={"mode": mode}, headers=BOSS)
            assert (told.status_code, told.json()["cap"], told.json()["persistent"]) == (200, mode, False)
            for each in (one, two):
                assert HTTP.get(f"{each}/desist/v1/mode", headers=BOSS).json()["cap"] == mode
                assert HTTP.post(each + CHAT, json=ASK).headers["x-desist-mode"] == mode
        ours, theirs = socket.socketpair()  # one that comes later, as in place of one that has died
        hub.adopt(ours)
        settings = Settings(
            engine="upstream",
            upstream=UpstreamSettings(url=upstream, self_test=False),
        )
        with live_server(create_app(settings, membership=Membership(theirs))) as late:
            assert HTTP.post(late + CHAT, json=ASK).headers["x-desist-mode"] == "shadow"


def test_a_file_that_cannot_be_written_keeps_nobody_from_obeying(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    where = tmp_path / "file" / "mode"
    with (
        live_server(FakeUpstream().app()) as upstream,
        team(tmp_path, upstream, mode_file=where) as (_, one, two),
    ):
        told = HTTP.post(f"{one}/desist/v1/mode", json={"mode": "off"}, headers=BOSS)
        assert (told.status_code, told.json()["error"]["code"]) == (503, "mode_not_kept")
        for base in (one, two):
            assert HTTP.post(base + CHAT, json=ASK).headers["x-desist-mode"] == "off"


def test_the_limits_hold_for_all_together(tmp_path: Path) -> None:
    fake = FakeUpstream(pause_s=0.02)
    limits = LimitSettings(max_in_flight=2, max_queue=3, queue_s=20)
    with live_server(fake.app()) as upstream, team(tmp_path, upstream, limits=limits) as (_, one, two):
        with ThreadPoolExecutor(9) as pool:
            asked = [pool.submit(httpx.post, base + CHAT, json=ASK, timeout=30) for base in [one, two] * 4]
            most = 0
            while not all(each.done() for each in asked):
                most = max(most, len(fake.sent) - sum(fake.ended))
        statuses = sorted(each.result().status_code for each in asked)
        assert statuses == [200] * 5 + [429] * 3
        assert 1 <= most <= 2


def test_places_go_to_whoever_waits_longest_and_come_back_from_the_dead(tmp_path: Path) -> None:
    one, two = (SharedPlaces(tmp_path / "places", row, 2) for row in (0, 1))
    assert one.take(2, 1.0)
    assert two.take(2, 2.0)
    assert not one.take(2, 3.0)
    two.note(1, 1e12)  # somebody waits there, who came later than anybody
    one.give()
    assert two.take(2, 1e12)
    one.note(1, 1.5)
    assert (one.served, one.waiting) == (2, 2)
    one.clear(1)
    assert (two.served, two.waiting) == (0, 1)
    one.close()
    two.close()


def test_two_queues_are_one(tmp_path: Path) -> None:
    async def run() -> list[str]:
        places = [SharedPlaces(tmp_path / "places", row, 2) for row in (0, 1)]
        one, two = (Admission(1, 9, 5.0, places=each) for each in places)
        first = await one.enter()
        order: list[str] = []

        async def served(name: str, admission: Admission) -> None:
            place = await admission.enter()
            order.append(name)
            await asyncio.sleep(0.01)
            place.leave()

        tasks = []
        for name, admission in zip("abcd", (two, one, two, one), strict=True):
            tasks.append(asyncio.create_task(served(name, admission)))
            await asyncio.sleep(0.005)
        gone = asyncio.create_task(served("gone", two))
        await asyncio.sleep(0.005)
        one.resize(1, 5, 5.0)
        with pytest.raises(ApiError, match="1 requests are being served and 5 wait"):
            await one.enter()
        gone.cancel()
        first.leave()
        await asyncio.gather(*tasks)
        for each in places:
            assert (each.served, each.waiting) == (0, 0)
            each.close()
        return order

    assert asyncio.run(run()) == ["a", "b", "c", "d"]


def test_a_line_carries_answers_refusals_and_its_end() -> None:
    async def run() -> None:
        heard: list[bytes] = []

        async def slow(value: int) -> int:
            await asyncio.sleep(0.02)
            return value + 1

        def refuse() -> None:
            raise ControlError("not like this.")

        ends = socket.socketpair()
        theirs: dict[str, Any] = {
            "slow": slow,
            "refuse": refuse,
            "note": heard.append,
            "never": asyncio.Event().wait,
        }
        lines = []
        for sock, told in zip(ends, ({}, theirs), strict=True):
            sock.setblocking(False)
            lines.append(Line(*await asyncio.open_connection(sock=sock), told))
        one, two = lines
        tasks = [asyncio.create_task(each.run()) for each in lines]
        large = bytes(3_000_000)
        assert one.tell("note", large)
        assert await asyncio.gather(*(one.call("slow", n, timeout_s=5) for n in range(50))) == [*range(1, 51)]
        assert heard == [large]
        with pytest.raises(EngineError, match="not like this"):
            await one.call("refuse", timeout_s=5)
        with pytest.raises(EngineError, match="nosuch"):
            await one.call("nosuch", timeout_s=5)
        with pytest.raises(EngineError, match=r"did not answer within 0\.05 s"):
            await one.call("never", timeout_s=0.05)
        waiting = asyncio.create_task(one.call("never", timeout_s=5))
        await asyncio.sleep(0.02)
        two.close()
        with pytest.raises(EngineError, match="is gone"):
            await waiting
        with pytest.raises(EngineError, match="is gone"):
            await one.call("slow", 1, timeout_s=5)
        assert not one.tell("note", b"")
        await asyncio.gather(*tasks)

    asyncio.run(run())
