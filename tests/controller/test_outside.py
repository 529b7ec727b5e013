"""Stops from outside, stops that could not be carried out, and the operator's kill switch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import (
    Action,
    Boundary,
    Control,
    ModelProfile,
    Policy,
    Session,
    StopMachine,
    StopReason,
)
from tests.fakes.vocabulary import FakeVocabulary


def at(machine: StopMachine, index: int, position: int, score: float | None = None) -> Action:
    return machine.at_boundary(Boundary(index, position, "cue"), score).action


def test_a_probe_elsewhere_stops_at_the_next_token_and_names_its_boundary() -> None:
    machine = StopMachine(Control("active", Policy(lam=None)))
    at(machine, 0, 10)
    machine.stop_now(StopReason.PROBE, index=0, score=0.97, certified=True)
    decision = machine.advance(11)
    assert decision.stops
    assert (decision.reason, decision.position, decision.index) == (StopReason.PROBE, 11, 0)
    assert (decision.score, decision.certified) == (0.97, True)


def test_a_stop_from_outside_waits_for_the_end_of_a_zone_and_the_first_one_counts() -> None:
    machine = StopMachine(Control())
    machine.advance(5)
    machine.stop_now(StopReason.PROBE, index=3, score=0.9)
    machine.stop_now()
    assert not machine.advance(6, held=True).stops
    assert machine.advance(7).reason is StopReason.PROBE


def test_a_stop_from_outside_at_a_boundary_keeps_the_boundary_it_judged() -> None:
    machine = StopMachine(Control("active", Policy(lam=None)))
    at(machine, 0, 10)
    machine.stop_now(StopReason.PROBE, index=0, score=0.97)
    decision = machine.at_boundary(Boundary(1, 14, "cue"), None)
    assert (decision.index, decision.position, decision.score) == (0, 14, 0.97)


def test_a_stop_that_could_not_be_carried_out_is_tried_again_at_the_next_boundary() -> None:
    machine = StopMachine(Control("active", Policy(lam=0.5), budget=20))
    assert at(machine, 0, 10, 0.9) is Action.STOP
    machine.withdraw()
    assert machine.stopped is None
    assert at(machine, 0, 10, 0.9) is Action.HOLD  # what is remembered of that place
    for position in range(11, 25):  # the hard budget has passed, but no boundary has come
        assert not machine.advance(position).stops
    assert at(machine, 1, 25, None) is Action.STOP


def test_a_refused_draft_reinstates_the_stop_that_it_spoke_against() -> None:
    machine = StopMachine(Control("active", Policy(lam=0.5)))
    at(machine, 0, 10, 0.9)
    stopped = machine.stopped
    machine.withdraw()
    assert at(machine, 1, 12, 0.1) is Action.CONTINUE
    machine.rewind(10)
    machine.reinstate()
    assert machine.stopped == stopped
    assert machine.at_boundary(Boundary(2, 15, "cue"), 0.1) == stopped


def test_withdrawing_and_reinstating_nothing_is_nothing() -> None:
    machine = StopMachine(Control("active", Policy(lam=0.5)))
    machine.withdraw()
    machine.reinstate()
    assert at(machine, 0, 3, 0.9) is Action.STOP


@pytest.mark.parametrize("mode", ["active", "shadow", "off"])
@pytest.mark.parametrize("cap", ["active", "shadow", "off"])
def test_the_cap_lowers_and_never_raises(mode: str, cap: str) -> None:
    order = ["off", "shadow", "active"]
    machine = StopMachine(Control(mode, Policy(lam=0.5)))  # type: ignore[arg-type]
    machine.cap(cap)  # type: ignore[arg-type]
    lowest = min(mode, cap, key=order.index)
    assert machine.control.mode == lowest
    assert at(machine, 0, 5, 0.9) is (Action.STOP if lowest == "active" else Action.CONTINUE)
    assert (machine.shadow is not None) == (lowest == "shadow")


def test_a_capped_request_loses_the_reserves_limit_but_keeps_its_own_budget() -> None:
    machine = StopMachine(Control("active"), max_tokens=100)
    assert machine.hard_limit is not None
    machine.cap("shadow")
    assert machine.hard_limit is None
    own = StopMachine(Control("active", budget=10), max_tokens=100)
    own.cap("off")
    assert own.hard_limit == 11


def test_a_session_passes_all_of_it_on() -> None:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    ids = words.ids("one", " wait", " two", " hmm")
    profile = ModelProfile("test", handoff_write="\n</think>\n", kinds=("cue",), tool_call_open=None)
    session = Session(profile, words, Control("active", Policy(lam=0.5)), words.encode("<think>"))
    session.decide(session.push(ids[0]))
    assert session.decide(session.push(ids[1]), {"probe": 0.9}).stops
    session.withdraw()
    assert session.thinking
    assert session.scored[-1].decision.action is Action.HOLD
    session.push(ids[2])
    session.rewind(2)
    session.reinstate()
    assert session.scored[-1].decision.stops
    assert not session.thinking
    session.withdraw()
    session.cap("shadow")
    assert session.control.mode == "shadow"
    session.stop_now()
    assert session.decide(session.push(ids[3]), {"probe": 0.9}).reason is StopReason.MANUAL


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=2, max_size=12), st.data())
def test_a_stop_taken_back_and_reinstated_changes_nothing(
    steps: list[tuple[int, float]], data: st.DataObject
) -> None:
    plain, other = (StopMachine(Control("active", Policy(lam=0.6, patience=2))) for _ in range(2))
    position = 0
    for index, (distance, score) in enumerate(steps):
        position += distance
        expected = plain.at_boundary(Boundary(index, position, "cue"), score)
        assert other.at_boundary(Boundary(index, position, "cue"), score) == expected
        if expected.stops and other.stopped is not None:
            other.withdraw()
            for draft in range(data.draw(st.integers(0, 3))):
                other.at_boundary(Boundary(index + 1 + draft, position + 1 + draft, "cue"), 0.2)
            other.rewind(expected.position)
            other.reinstate()
            assert other.stopped == plain.stopped
            return
