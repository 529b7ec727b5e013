"""Giving up in the stop machine: its place among the rules, hold-off zones, modes and rejected drafts."""

from __future__ import annotations

import pytest

from desist.controller.core import Action, Boundary, Control, Decision, GiveUp, Policy, StopReason
from desist.controller.machine import StopMachine
from desist.data.errors import ControlError

HOPELESS = Policy(lam=0.8, certified=True, give_up=GiveUp(0.9, after=20, certified=False))


def at(machine: StopMachine, position: int, score: float | None, *, held: bool = False) -> Decision:
    return machine.at_boundary(Boundary(position // 10, position, "cue"), score, held=held)


def test_gives_up_after_its_warm_up_and_says_who_did() -> None:
    machine = StopMachine(Control(policy=HOPELESS))
    assert not at(machine, 10, 0.05).stops
    decision = at(machine, 20, 0.05)
    assert (decision.action, decision.reason, decision.certified) == (
        Action.STOP,
        StopReason.GIVE_UP,
        False,
    )


def test_a_tie_does_not_give_up() -> None:
    policy = Policy(lam=0.8, give_up=GiveUp(0.75))
    assert not at(StopMachine(Control(policy=policy)), 10, 0.25).stops
    assert at(StopMachine(Control(policy=policy)), 10, 0.24).reason is StopReason.GIVE_UP


def test_where_both_sides_would_end_it_the_stop_goes_before() -> None:
    policy = Policy(lam=0.2, certified=True, give_up=GiveUp(0.2))
    decision = at(StopMachine(Control(policy=policy)), 10, 0.5)
    assert (decision.reason, decision.certified) == (StopReason.PROBE, True)


def test_a_hold_off_zone_is_waited_for() -> None:
    machine = StopMachine(Control(policy=HOPELESS))
    assert at(machine, 20, 0.0, held=True).action is Action.HOLD
    assert at(machine, 30, 0.0).reason is StopReason.GIVE_UP


def test_shadow_only_notes_it_and_off_does_not_look() -> None:
    shadow = StopMachine(Control(mode="shadow", policy=HOPELESS))
    assert not at(shadow, 20, 0.0).stops
    assert shadow.shadow is not None
    assert shadow.shadow.reason is StopReason.GIVE_UP
    off = StopMachine(Control(mode="off", policy=HOPELESS))
    assert not at(off, 20, 0.0).stops
    assert off.shadow is None


def test_missing_evidence_never_gives_up() -> None:
    machine = StopMachine(Control(policy=HOPELESS))
    assert not at(machine, 20, None).stops
    assert not at(machine, 30, float("nan")).stops


def test_rejected_drafts_leave_nothing_behind() -> None:
    patient = Policy(lam=0.8, patience=2, give_up=GiveUp(0.9))
    machine = StopMachine(Control(policy=patient))
    assert not at(machine, 20, 0.0).stops
    machine.rewind(10)
    assert not at(machine, 20, 0.0).stops  # the first of two again
    assert at(machine, 30, 0.0).reason is StopReason.GIVE_UP


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ControlError, match="not a number"):
        GiveUp(float("nan"))
    with pytest.raises(ControlError, match="give 0 or more"):
        GiveUp(0.5, after=-1)
    with pytest.raises(ControlError, match="never stops"):
        Policy(lam=None, give_up=GiveUp(0.5))
