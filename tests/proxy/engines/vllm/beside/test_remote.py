"""Decisions in the proxy: batched scores, one stop a request, and what happens when it is late or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from desist.controller import Control, Policy
from desist.data.errors import ProbeError
from desist.kernels import Layer
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from desist.proxy.engines.vllm.beside.counters import VllmCounters
from desist.proxy.engines.vllm.beside.hidden_rows import HiddenScorer
from desist.proxy.engines.vllm.beside.remote import Remote
from desist.proxy.engines.vllm.wire import Closed, Identity, Scored, StopNow, Stopped, Told
from tests.fakes.vllm_server import WIDTH, threshold_probe

CONTROL = Control("active", Policy(lam=0.5, certified=True), budget=30)
GO_ON = Told("continue", "none", 0)


@dataclass(eq=False)
class Scorer:
    """The first float is the score; remembers how many rows came together."""

    batches: list[int] = field(default_factory=list)
    broken: bool = False

    def scores(self, rows: Sequence[tuple[bytes, str | None]]) -> list[float]:
        self.batches.append(len(rows))
        if self.broken:
            raise ProbeError("the probe is broken")
        return [float(np.frombuffer(data, np.float32)[0]) for data, _ in rows]

    def warm_up(self) -> None: ...


@dataclass
class Desk:
    """A remote, what it has sent, and its counters."""

    scorer: Scorer = field(default_factory=Scorer)
    sent: list[StopNow] = field(default_factory=list)
    takes: bool = True
    decides: bool = True
    waiting: int = 100

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = VllmCounters(lambda: {"lost": 3})
        self.counters.register(self.registry)
        self.remote = Remote(
            {"probe": self.scorer}, decides=self.decides, send=self.send, counters=self.counters,
            waiting=self.waiting,
        )  # fmt: skip

    def send(self, command: StopNow) -> bool:
        if self.takes:
            self.sent.append(command)
        return self.takes

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"desist_vllm_{name}", labels) or 0.0


def run(desk: Desk, what: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        desk.remote.start()
        await what()
        await desk.remote.close()

    asyncio.run(body())


def reached(key: str, index: int, score: float, *, held: bool = False, told: Told = GO_ON) -> Scored:
    hidden = np.array([score], np.float32).tobytes()
    return Scored(
        Identity(key), index, index, 10 * index + 5, 10 * index + 6, "cue", "wait", {}, told, held, hidden,
        "float32",
    )  # fmt: skip


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0.005)


def test_the_first_score_above_the_threshold_is_sent_once() -> None:
    desk = Desk()

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), CONTROL)
        for index, score in enumerate((0.2, 0.5, 0.9, 0.95)):
            desk.remote.take(ward, reached("a", index, score))
            await settled()
        assert [scores["probe"] for scores in ward.scores.values()] == pytest.approx([0.2, 0.5, 0.9, 0.95])
        assert [str(decision.action) for decision in ward.decisions.values()] == [
            "continue",
            "continue",
            "stop",
        ]
        stop = Told("stop", "probe", 27, 2, 0.9)
        desk.remote.settle(ward, Stopped(Identity("a"), 4, stop, 28, (1, 2)), None)
        desk.remote.settle(ward, None, None)

    run(desk, body)
    assert [(each.key, each.index, each.reason, each.certified) for each in desk.sent] == [
        ("a", 2, "probe", False)
    ]
    assert desk.count("proxy_decisions_total", outcome="in_time") == 1
    assert desk.count("proxy_decision_delay_tokens_sum") == 2
    assert desk.count("streamed_boundaries_total", dtype="float32") == 4
    assert desk.count("streamed_bytes_total", dtype="float32") == 16
    assert desk.count("events_total", kind="lost") == 3


def test_all_that_waits_is_scored_together() -> None:
    desk = Desk()

    async def body() -> None:
        wards = [desk.remote.watch(Identity(str(n)), CONTROL) for n in range(12)]
        for n, ward in enumerate(wards):
            desk.remote.take(ward, reached(str(n), 0, n / 12))
        await settled()

    run(desk, body)
    assert max(desk.scorer.batches) > 1
    assert sorted(each.key for each in desk.sent) == sorted(str(n) for n in range(7, 12))


def test_a_held_boundary_waits_for_the_next() -> None:
    desk = Desk()

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), CONTROL)
        desk.remote.take(ward, reached("a", 0, 0.9, held=True))
        desk.remote.take(ward, reached("a", 1, 0.9))
        await settled()

    run(desk, body)
    assert [each.index for each in desk.sent] == [1]


def test_late_lost_and_failed_decisions_are_told_apart() -> None:
    desk = Desk()
    natural = Closed(Identity("x"), 1, 40, 30, 0, "natural")
    budget = Stopped(Identity("x"), 1, Told("stop", "budget", 30, 0), 31, (1,))

    async def body() -> None:
        for stopped, closed, left in ((None, natural, False), (budget, natural, False), (None, None, True)):
            ward = desk.remote.watch(Identity("x"), CONTROL)
            desk.remote.take(ward, reached("x", 0, 0.9))
            await settled()
            desk.remote.settle(ward, stopped, closed, left=left)
        ward = desk.remote.watch(Identity("x"), CONTROL)
        desk.remote.take(ward, reached("x", 0, 0.9))
        await settled()
        desk.remote.settle(ward, None, None)
        desk.scorer.broken = True
        ward = desk.remote.watch(Identity("x"), CONTROL)
        desk.remote.take(ward, reached("x", 0, 0.9))
        await settled()
        assert ward.failure is not None
        assert "the probe is broken" in ward.failure
        desk.remote.settle(ward, None, natural)

    run(desk, body)
    counts = {
        kind: desk.count("proxy_decisions_total", outcome=kind)
        for kind in ("late", "lost", "failed", "in_time")
    }
    assert counts == {"late": 3, "lost": 1, "failed": 1, "in_time": 0}


def test_a_stop_that_cannot_be_sent_is_tried_at_the_next_boundary() -> None:
    desk = Desk(takes=False)

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), CONTROL)
        desk.remote.take(ward, reached("a", 0, 0.9))
        await settled()
        desk.takes = True
        desk.remote.take(ward, reached("a", 1, 0.9))
        await settled()

    run(desk, body)
    assert [each.index for each in desk.sent] == [1]
    assert desk.count("proxy_decisions_total", outcome="lost") == 1


def test_nothing_is_sent_after_the_engine_stopped_or_the_switch_fell() -> None:
    desk = Desk()

    async def body() -> None:
        by_budget = desk.remote.watch(Identity("a"), CONTROL)
        desk.remote.take(by_budget, reached("a", 0, 0.9, told=Told("stop", "budget", 5, 0)))
        switched = desk.remote.watch(Identity("b"), CONTROL)
        desk.remote.limit("shadow")
        later = desk.remote.watch(Identity("c"), CONTROL)
        for ward, key in ((switched, "b"), (later, "c")):
            desk.remote.take(ward, reached(key, 0, 0.9))
        await settled()
        for ward in (switched, later):
            assert ward.shadow is not None
            assert (ward.shadow.index, ward.shadow.certified) == (0, False)

    run(desk, body)
    assert desk.sent == []


def test_too_many_waiting_boundaries_are_passed_over_and_told() -> None:
    desk = Desk(waiting=2)

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), CONTROL)
        for index in range(3):
            desk.remote.take(ward, reached("a", index, 0.1))
        assert ward.failure is not None
        assert "2 boundaries wait" in ward.failure
        await settled()

    run(desk, body)


def test_a_candidate_scores_and_never_decides() -> None:
    desk = Desk(decides=False)

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), CONTROL)
        desk.remote.take(ward, reached("a", 0, 0.9))
        await settled()
        assert ward.scores[0]["probe"] == pytest.approx(0.9)
        assert ward.decisions == {}

    run(desk, body)
    assert desk.sent == []


def test_a_scorer_that_is_not_here_is_told() -> None:
    desk = Desk()

    async def body() -> None:
        ward = desk.remote.watch(Identity("a"), Control("active", Policy(scorer="rom", lam=0.5)))
        assert ward.failure is not None
        assert "'rom', which the proxy does not compute" in ward.failure

    run(desk, body)


def test_a_running_request_keeps_its_probe() -> None:
    desk, other = Desk(), Scorer()

    async def body() -> None:
        old = desk.remote.watch(Identity("a"), CONTROL)
        desk.remote.use({"probe": other})
        new = desk.remote.watch(Identity("b"), CONTROL)
        desk.remote.take(old, reached("a", 0, 0.1))
        desk.remote.take(new, reached("b", 0, 0.1))
        await settled()

    run(desk, body)
    assert (desk.scorer.batches, other.batches) == ([1], [1])


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_streamed_bytes_give_the_probe_s_own_scores(kind: str) -> None:
    rows = torch.randn(5, 3 * WIDTH, generator=torch.Generator().manual_seed(1))
    card = ProbeCard("logistic", (4, 1), WIDTH, "consistent", hidden_dtype="float32")
    probe = LynxProbe(
        card, [Layer(torch.randn(1, 2 * WIDTH, generator=torch.Generator().manual_seed(2)), torch.zeros(1))]
    )
    scorer = HiddenScorer(probe, (1, 2, 4), WIDTH)
    dtype = getattr(torch, kind)
    told = rows.to(dtype).float()
    data = [row.view(torch.uint8).numpy().tobytes() for row in rows.to(dtype)]
    expected = probe.score(torch.cat((told[:, 2 * WIDTH :], told[:, :WIDTH]), 1)).tolist()
    assert scorer.scores([(each, kind) for each in data]) == pytest.approx(expected, abs=1e-7)
    with pytest.raises(ProbeError, match="bytes came"):
        scorer.scores([(data[0][:-4], kind)])


def test_layers_that_are_not_streamed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"reads the layers \[2\].*streams the layers \[1\]"):
        HiddenScorer(threshold_probe(), (1,), WIDTH)
    card = ProbeCard("logistic", (-1,), WIDTH, "consistent")
    last = LynxProbe(card, [Layer(torch.zeros(1, WIDTH), torch.zeros(1))])
    HiddenScorer(last, (2, 4), WIDTH, n_layers=4)
    with pytest.raises(ProbeError, match="--model"):
        HiddenScorer(last, (2, 4), WIDTH)
