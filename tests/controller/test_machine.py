"""The stop machine: order of rules, limits, causality, and state by position."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import (
    Action,
    Boundary,
    Control,
    Decision,
    Mode,
    Policy,
    StopMachine,
    StopReason,
    answer_reserve,
    grace_tokens,
)
from desist.data.errors import ControlError

SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.floats(0, 1))
STEPS = st.lists(st.tuples(st.integers(1, 40), SCORES, st.booleans()), max_size=8)
CONTROLS = st.builds(
    Control,
    mode=st.sampled_from(["off", "shadow", "active"]),
    policy=st.builds(
        Policy,
        lam=st.one_of(st.none(), st.sampled_from([0.3, 0.5, 0.9])),
        patience=st.integers(1, 3),
        warmup_tokens=st.integers(0, 100),
        ema=st.sampled_from([0.25, 0.5, 1.0]),
        certified=st.booleans(),
    ),
    budget=st.one_of(st.none(), st.integers(0, 300)),
)


def run(machine: StopMachine, steps: list[tuple[int, float | None, bool]]) -> list[Decision]:
    """Boundaries at growing positions; `steps` holds (distance, score, held)."""
    position, decisions = 0, []
    for index, (distance, score, held) in enumerate(steps):
        position += distance
        decisions.append(machine.at_boundary(Boundary(index, position, "cue"), score, held=held))
    return decisions


def scored(policy: Policy, scores: list[float | None], mode: Mode = "active") -> list[Action]:
    machine = StopMachine(Control(mode=mode, policy=policy))
    return [decision.action for decision in run(machine, [(10, score, False) for score in scores])]


GO, STOP, HOLD = Action.CONTINUE, Action.STOP, Action.HOLD


def test_a_tie_does_not_stop() -> None:
    assert scored(Policy(lam=0.9), [0.9, 0.9, math.nextafter(0.9, 1)]) == [GO, GO, STOP]
    assert scored(Policy(lam=1.0), [1.0]) == [GO]


def test_no_threshold_never_stops() -> None:
    assert scored(Policy(lam=None), [1.0, 1.0]) == [GO, GO]


def test_R74_patience_counts_boundaries_in_a_row() -> None:
    assert scored(Policy(lam=0.5, patience=2), [0.9, 0.4, 0.9, 0.9]) == [GO, GO, GO, STOP]


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_a_boundary_without_evidence_is_passed_over(nothing: float | None) -> None:
    assert scored(Policy(lam=0.5, patience=2, ema=0.5), [0.9, nothing, 0.9]) == [GO, GO, STOP]
    assert scored(Policy(lam=0.5), [nothing]) == [GO]


def test_warm_up_counts_tokens_and_gives_no_streak() -> None:
    assert scored(Policy(lam=0.5, warmup_tokens=20), [0.9, 0.9]) == [GO, STOP]
    assert scored(Policy(lam=0.5, warmup_tokens=20, patience=2), [0.9, 0.9, 0.9]) == [GO, GO, STOP]


def test_R74_smoothing_weighs_the_newest_score() -> None:
    machine = StopMachine(Control(policy=Policy(lam=0.7, ema=0.25)))
    decisions = run(machine, [(10, score, False) for score in (0.0, 1.0, 1.0, 1.0, 1.0, 1.0)])
    assert [d.score for d in decisions][:3] == [0.0, 0.25, 0.4375]
    assert [d.stops for d in decisions] == [False] * 5 + [True]


def test_only_a_score_stop_under_a_certificate_is_certified() -> None:
    policy = Policy(lam=0.5, certified=True, reason=StopReason.AGREEMENT)
    assert run(StopMachine(Control(policy=policy)), [(10, 0.9, False)])[0] == Decision(
        STOP, StopReason.AGREEMENT, 10, 0, 0.9, certified=True
    )
    over = StopMachine(Control(policy=policy, budget=10))
    assert run(over, [(10, 0.9, False)])[0] == Decision(STOP, StopReason.BUDGET, 10, 0, 0.9)
    by_hand = StopMachine(Control(policy=policy))
    by_hand.stop_now()
    assert run(by_hand, [(10, 0.9, False)])[0] == Decision(STOP, StopReason.MANUAL, 10, 0, 0.9)
    plain = StopMachine(Control(policy=replace(policy, certified=False)))
    assert not run(plain, [(10, 0.9, False)])[0].certified


def test_hold_off_postpones_a_score_stop() -> None:
    machine = StopMachine(Control(policy=Policy(lam=0.5)))
    decisions = run(machine, [(10, 0.9, True), (10, 0.4, False), (10, 0.9, False)])
    assert [d.action for d in decisions] == [HOLD, GO, STOP]
    assert decisions[0].reason is StopReason.PROBE
    assert decisions[2].position == 30


def test_budget_waits_for_a_clean_boundary_within_its_grace_then_cuts() -> None:
    machine = StopMachine(Control(budget=100))
    assert (machine.soft_limit, machine.hard_limit) == (100, 110)
    assert machine.at_boundary(Boundary(0, 99, "cue"), None).action is GO
    assert machine.advance(100).action is GO
    held = machine.at_boundary(Boundary(1, 101, "cue"), None, held=True)
    assert (held.action, held.reason) == (HOLD, StopReason.BUDGET)
    assert machine.advance(109, held=True).action is GO
    cut = machine.advance(110, held=True)
    assert (cut.action, cut.reason, cut.position, cut.index) == (STOP, StopReason.BUDGET, 110, None)


def test_budget_stops_at_the_first_clean_boundary_in_its_grace() -> None:
    machine = StopMachine(Control(budget=100))
    machine.advance(100)
    decision = machine.at_boundary(Boundary(0, 103, "paragraph"), None)
    assert (decision.action, decision.position) == (STOP, 103)


def test_an_overdue_budget_cuts_at_a_held_boundary() -> None:
    assert StopMachine(Control(budget=100)).at_boundary(Boundary(0, 110, "cue"), None, held=True).stops


def test_budget_never_cuts_inside_a_character() -> None:
    machine = StopMachine(Control(budget=5))
    assert machine.advance(5, whole=False).action is GO
    assert machine.advance(6, whole=True).position == 6


@pytest.mark.parametrize(("budget", "grace"), [(0, 0), (9, 0), (100, 10), (640, 64), (10_000, 64)])
def test_grace(budget: int, grace: int) -> None:
    assert grace_tokens(budget) == grace


@pytest.mark.parametrize(("max_tokens", "reserve"), [(1, 1), (3, 1), (100, 25), (1024, 256), (32_000, 256)])
def test_reserve(max_tokens: int, reserve: int) -> None:
    assert answer_reserve(max_tokens) == reserve


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1500), st.one_of(st.none(), st.integers(0, 2000)), st.integers(0, 30), st.booleans())
def test_the_answer_always_keeps_its_reserve(
    max_tokens: int, budget: int | None, handoff_tokens: int, held: bool
) -> None:
    machine = StopMachine(Control(budget=budget), max_tokens=max_tokens, handoff_tokens=handoff_tokens)
    position = 1
    while not machine.advance(position, held=held).stops:
        position += 1
    room = max_tokens - answer_reserve(max_tokens) - handoff_tokens
    assert position <= max(1, room)


def test_the_reserves_grace_lies_before_its_limit() -> None:
    machine = StopMachine(Control(), max_tokens=1000, handoff_tokens=10)
    assert (machine.soft_limit, machine.hard_limit) == (740 - 64, 740)
    assert machine.at_boundary(Boundary(0, 675, "cue"), None).action is GO
    assert machine.at_boundary(Boundary(1, 676, "cue"), None).reason is StopReason.BUDGET


def test_the_reserve_is_the_servers_and_does_not_touch_a_request_that_is_only_watched() -> None:
    for mode in ("off", "shadow"):
        assert StopMachine(Control(mode=mode), max_tokens=100).hard_limit is None  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["off", "shadow", "active"])
def test_a_budget_acts_in_every_mode(mode: Mode) -> None:
    assert StopMachine(Control(mode=mode, budget=10)).advance(11).stops


def test_shadow_tells_the_first_stop_and_goes_on() -> None:
    machine = StopMachine(Control(mode="shadow", policy=Policy(lam=0.5, certified=True)))
    decisions = run(machine, [(10, 0.4, False), (10, 0.9, False), (10, 0.95, False)])
    assert [d.action for d in decisions] == [GO, GO, GO]
    assert machine.stopped is None
    assert machine.shadow == Decision(STOP, StopReason.PROBE, 20, 1, 0.9, certified=True)


def test_off_looks_at_no_score() -> None:
    machine = StopMachine(Control(mode="off", policy=Policy(lam=0.5)))
    assert run(machine, [(10, 1.0, False)])[0].action is GO
    assert machine.shadow is None


def test_a_stop_by_hand_acts_in_any_mode_outside_zones_or_after_64_tokens() -> None:
    for mode in ("off", "shadow", "active"):
        machine = StopMachine(Control(mode=mode))  # type: ignore[arg-type]
        machine.advance(10)
        machine.stop_now()
        assert machine.advance(11, held=True).action is GO
        assert machine.advance(12, whole=False).action is GO
        assert machine.at_boundary(Boundary(0, 13, "cue"), 0.0, held=True).action is GO
        assert machine.advance(74, held=True).reason is StopReason.MANUAL


def test_a_stop_is_final() -> None:
    machine = StopMachine(Control(policy=Policy(lam=0.5)))
    first = machine.at_boundary(Boundary(0, 10, "cue"), 0.9)
    assert machine.at_boundary(Boundary(1, 20, "cue"), 0.0) is first
    assert machine.advance(30) is first


def test_going_back_without_rewind_is_refused() -> None:
    machine = StopMachine(Control())
    run(machine, [(10, 0.1, False), (10, 0.1, False)])
    with pytest.raises(ControlError, match="call rewind"):
        machine.at_boundary(Boundary(0, 15, "cue"), 0.1)


@settings(max_examples=60, deadline=None)
@given(CONTROLS, STEPS, st.integers(0, 12))
def test_R57_cutting_a_trace_never_changes_what_came_before(
    control: Control, steps: list[tuple[int, float | None, bool]], cut: int
) -> None:
    whole, part = StopMachine(control, max_tokens=400), StopMachine(control, max_tokens=400)
    assert run(part, steps[:cut]) == run(whole, steps)[:cut]


@settings(max_examples=60, deadline=None)
@given(CONTROLS, STEPS, st.data())
def test_a_position_seen_twice_counts_once(
    control: Control, steps: list[tuple[int, float | None, bool]], data: st.DataObject
) -> None:
    once = run(StopMachine(control), steps)
    machine, position, again = StopMachine(control), 0, []
    for index, (distance, score, held) in enumerate(steps):
        position += distance
        boundary = Boundary(index, position, "cue")
        again.append(machine.at_boundary(boundary, score, held=held))
        for other in data.draw(st.lists(SCORES, max_size=2)):
            assert machine.at_boundary(boundary, other) == again[-1]
    assert again == once


@settings(max_examples=60, deadline=None)
@given(CONTROLS, STEPS, STEPS, st.data())
def test_rewind_forgets_rejected_drafts(
    control: Control,
    steps: list[tuple[int, float | None, bool]],
    drafts: list[tuple[int, float | None, bool]],
    data: st.DataObject,
) -> None:
    keep = data.draw(st.integers(0, len(steps)))
    fresh = StopMachine(control)
    expected = run(fresh, steps)
    machine = StopMachine(control)
    run(machine, steps[:keep] + drafts)
    position = sum(distance for distance, _, _ in steps[:keep])
    machine.rewind(position)
    again = []
    for index, (distance, score, held) in enumerate(steps[keep:], start=keep):
        position += distance
        again.append(machine.at_boundary(Boundary(index, position, "cue"), score, held=held))
    assert again == expected[keep:]
    assert (machine.stopped, machine.shadow) == (fresh.stopped, fresh.shadow)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (lambda: Policy(lam=math.nan), "lam"),
        (lambda: Policy(patience=0), "patience is 0"),
        (lambda: Policy(ema=0.0), "ema is 0.0"),
        (lambda: Policy(warmup_tokens=-1), "warmup_tokens is -1"),
        (lambda: Control(budget=-1), "budget is -1"),
        (lambda: Control(mode="on"), "mode is 'on'"),  # type: ignore[arg-type]
        (lambda: Control(answer="short"), "answer is 'short'"),  # type: ignore[arg-type]
        (lambda: StopMachine(Control(), max_tokens=0), "max_tokens is 0"),
    ],
)
def test_senseless_controls_are_refused_with_their_value(bad: object, match: str) -> None:
    with pytest.raises(ControlError, match=match):
        bad()  # type: ignore[operator]
