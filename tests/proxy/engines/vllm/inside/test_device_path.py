"""The device path against the host's own, on made-up worlds: same tokens, same stops, same events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.kernels.choice import interpreting
from desist.kernels.decide_and_force import decide
from desist.proxy.engines.vllm.inside.device_probes import Kernels, kernels_of
from desist.proxy.engines.vllm.wire import Blocked, Closed, Scored, SetMode, StopNow, Stopped
from tests.fakes.vllm_engine import complete
from tests.proxy.engines.vllm.inside.v2_requests import HANDOFF, N_LAYERS, VOCABULARY, scorers
from tests.proxy.engines.vllm.inside.v2_world import Packing, World

Between = Callable[[World, int], None]


def run(world: World, steps: int, between: Between = lambda world, number: None) -> World:
    for number in range(steps):
        between(world, number)
        world.step()
    world.run(0)
    return world


def both(
    seed: int,
    steps: int,
    *,
    lag: int = 0,
    mixed: bool = False,
    kernels: Kernels | None = None,
    between: Between = lambda world, number: None,
    **kind: Any,
) -> tuple[World, World]:
    """The same requests by the host, and on the device."""
    host = run(World(seed, device=False, **kind), steps, between)
    device = run(World(seed, device=True, lag=lag, mixed=mixed, kernels=kernels, **kind), steps, between)
    return host, device


def require_equal(host: World, device: World) -> None:
    """Each request in both worlds: same tokens and events, each event once; and both sides agreed."""
    replay = device.path.replay
    assert (replay.disagreements, replay.lost) == (0, 0)
    assert (host.runtime.errors, device.runtime.errors) == (0, 0)
    assert complete(device.events)
    assert not device.runtime.tracked
    assert not device.path.requests
    for name in host.done.keys() & device.done.keys():
        end = host.done[name].end
        assert device.done[name].out[:end] == host.done[name].out[:end], name
        assert device.told(name) == host.told(name), name


@settings(deadline=None, max_examples=25, print_blob=True)
@given(
    st.integers(0, 2**32),
    st.integers(0, 3),
    st.sampled_from([{}, {"lag": 1}, {"mixed": True}]),
    st.sampled_from([{}, {"masks": True}, {"rom": True}]),
)
def test_tokens_stops_and_events_are_those_of_the_host(
    seed: int, drafts: int, how: dict[str, Any], kind: dict[str, bool]
) -> None:
    """(Under async scheduling the host's own path reads a row more than there is, so it is no oracle.)"""
    require_equal(*both(seed, 25, drafts=drafts, **how, **kind))


@settings(deadline=None, max_examples=8, print_blob=True)
@given(st.integers(0, 2**32), st.booleans())
def test_hold_off_zones_are_exact_where_the_host_knows_each_token(seed: int, masks: bool) -> None:
    require_equal(*both(seed, 30, zones=True, masks=masks))


@settings(deadline=None, max_examples=10, print_blob=True)
@given(st.integers(0, 2**32), st.sampled_from([(0, 1), (2, 0), (3, 1)]))
def test_zones_told_late_delay_a_stop_and_never_hasten_one(seed: int, how: tuple[int, int]) -> None:
    drafts, lag = how
    host, device = both(seed, 30, zones=True, drafts=drafts, lag=lag)
    assert device.path.replay.disagreements == device.runtime.errors == 0
    for name in host.done.keys() & device.done.keys():
        stops = [[e for e in world.told(name) if isinstance(e, Stopped)] for world in (host, device)]
        assert len(stops[0]) >= len(stops[1])
        if stops[1]:
            assert stops[1][0].tokens >= stops[0][0].tokens
            prompt, out = device.done[name].prompt, device.done[name].out
            check_no_zone_is_cut(prompt, out, stops[1][0])


def check_no_zone_is_cut(prompt: list[int], out: list[int], stop: Stopped) -> None:
    from desist.controller import BoundaryDetector
    from tests.proxy.engines.vllm.inside.v2_requests import PROFILE

    if stop.decision.reason == "budget":  # after its grace a budget cuts anywhere
        return
    detector = BoundaryDetector.from_prompt(PROFILE, VOCABULARY, prompt)
    for token in out[: stop.tokens]:
        detector.push(token)
    assert not detector.held


def test_some_stops_are_delayed_where_zones_are_told_late() -> None:
    """The property above is not empty."""
    delayed = 0
    for seed in range(6):
        host, device = both(seed, 40, zones=True, drafts=3, lag=1)
        for name in host.done.keys() & device.done.keys():
            stops = [[e.tokens for e in w.told(name) if isinstance(e, Stopped)] for w in (host, device)]
            delayed += stops[0] != stops[1]
    assert delayed


def test_a_fixed_world_sees_everything() -> None:
    """Stops, hand-offs taken back and made again, preemption, refused drafts, both probes, shadow."""
    seen: dict[type, int] = {}
    preempted = refused = 0
    kinds: list[tuple[int, dict[str, bool]]] = [
        (5, {"masks": True}),
        (6, {"masks": True}),
        (7, {"rom": True}),
    ]
    for seed, kind in kinds:
        host, device = both(seed, 60, drafts=2, **kind)
        require_equal(host, device)
        preempted, refused = preempted + device.preempted, refused + device.refused
        for event in device.events:
            seen[type(event)] = seen.get(type(event), 0) + 1
        check_handoffs(device)
    assert min(seen[kind] for kind in (Scored, Stopped, Blocked, Closed)) > 2
    assert min(preempted, refused) > 5
    assert any(e.shadow is not None for e in device.events if isinstance(e, Closed))


def check_handoffs(world: World) -> None:
    """Where a hand-off was completed, its tokens follow the last stop one by one."""
    stopped = {e.identity.key: e for e in world.events if isinstance(e, Stopped)}
    whole = [e for e in world.events if isinstance(e, Closed) and e.handoff_tokens == len(HANDOFF)]
    assert whole
    for closed in whole:
        start = stopped[closed.identity.key].tokens
        out = world.done[closed.identity.key].out
        assert tuple(out[start : start + len(HANDOFF)]) == HANDOFF


@pytest.mark.skipif(not interpreting(), reason="on a machine with a GPU the kernels do not run on the CPU")
def test_interpreted_kernels_do_it_too() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    host, device = both(11, 14, drafts=1, rom=True, kernels=kernels_of("triton"))
    assert device.path.replay.disagreements == device.runtime.errors == 0
    assert {name: one.out for name, one in device.done.items()} == {
        name: one.out for name, one in host.done.items()
    }
    for name in device.done:
        pairs = zip(host.told(name), device.told(name), strict=True)
        for one, other in pairs:
            if isinstance(one, Scored):
                assert other.scores == pytest.approx(one.scores, abs=1e-5)
                assert (other.tokens, other.decision.action) == (one.tokens, one.decision.action)
            elif isinstance(one, Stopped):
                assert other.tokens == one.tokens


def stop_one(world: World, number: int) -> None:
    names = sorted(world.runtime.tracked)
    world.commands += [StopNow(name, name) for name in names[number % max(1, len(names)) :][:1]]


@pytest.mark.parametrize("drafts", [0, 2])
def test_commands_and_a_reload_take_hold_at_the_same_token(drafts: int) -> None:
    def between(world: World, number: int) -> None:
        if number in range(3, 24, 2):
            stop_one(world, number)
        if number == 12:
            world.runtime.scoring = Packing(scorers(rom=True), N_LAYERS, impl="torch")
        if number == 25:
            world.commands.append(SetMode("k", "shadow"))

    manual = 0
    for seed in range(4):
        host, device = both(seed, 40, drafts=drafts, between=between)
        require_equal(host, device)
        manual += sum(isinstance(e, Closed) and e.stop_reason == "manual" for e in device.events)
        assert device.runtime.cap == "shadow"
    assert manual > 2


def test_commands_under_async_scheduling_are_weighed_alike_on_both_sides() -> None:
    def between(world: World, number: int) -> None:
        if number % 5 == 2:
            stop_one(world, number)
        if number == 27:
            world.commands.append(SetMode("k", "off"))

    for seed in range(4):
        device = run(World(seed, device=True, lag=1, drafts=2, zones=True), 40, between)
        assert device.path.replay.disagreements == device.runtime.errors == 0
        assert complete(device.events)


def test_an_error_on_the_device_ends_control_and_the_host_finishes_hand_offs() -> None:
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise RuntimeError("out of something")
        return decide(*args, impl="torch", **kwargs)

    kernels = dataclasses.replace(kernels_of("torch"), decide=failing)
    device = run(World(3, device=True, kernels=kernels), 30)
    assert device.runtime.errors == 1
    closed = [event for event in device.events if isinstance(event, Closed)]
    told = [event for event in closed if event.uncontrolled]
    assert told
    assert all("out of something" in event.uncontrolled for event in told)
    assert len(told) < len(closed)  # those that came later are controlled again
    assert complete(device.events)
    stops = {event.identity.key: event.tokens for event in device.events if isinstance(event, Stopped)}
    for name, start in stops.items():
        out = device.done[name].out[start : start + len(HANDOFF)]
        assert tuple(out) == HANDOFF[: len(out)]


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_slot_that_is_lost_is_told_and_never_stopped(drafts: int) -> None:
    lost: list[str] = []

    def between(world: World, number: int) -> None:
        if number == 8:
            for name, steered in world.path.requests.items():
                if steered.slot is not None and not steered.one.idle and steered.one.stop_at is None:
                    world.slots.read.leave(steered.slot)
                    lost.append(name)

    device = run(World(9, device=True, drafts=drafts), 30, between)
    assert lost
    assert device.path.replay.lost == len(lost)
    assert device.runtime.errors == 0
    for name in lost:
        closed = device.told(name)[-1]
        assert "lost" in closed.uncontrolled
        assert not any(isinstance(event, Stopped) for event in device.told(name))


def test_a_device_that_decides_otherwise_is_noticed() -> None:
    """The comparison can fail: here the device decides by other scores than those that it tells."""

    def deaf(rows: Any, flags: Any, count: Any, zone: Any, score: Any, *rest: Any) -> Any:
        return decide(rows, flags, count, zone, torch.ones_like(score), *rest, impl="torch")

    device = run(World(1, device=True, kernels=dataclasses.replace(kernels_of("torch"), decide=deaf)), 30)
    assert device.path.replay.disagreements > 0
    assert device.runtime.errors == 0
    assert complete(device.events)
    told = [e for e in device.events if isinstance(e, Closed) and e.uncontrolled]
    assert len(told) == device.path.replay.disagreements


def test_logits_are_copied_for_requests_that_may_be_changed_only() -> None:
    def shadow(world: World, number: int) -> None:
        for one in world.waiting:
            one.params.extra_args |= {"desist_mode": "shadow"}
            one.params.extra_args.pop("desist_budget", None)

    world = World(2, device=True)
    world.runtime.cap = "shadow"
    run(world, 0)
    for number in range(30):
        shadow(world, number)
        world.step()
    assert any(steered.one.mode == "shadow" for steered in world.path.requests.values())
    assert world.copied == 0
