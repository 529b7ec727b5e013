"""The ring: records in the order of rows, copies that stay what they were, and losses that are told."""

from __future__ import annotations

import math

import pytest
import torch

from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import Record, Ring, SlotControl, Verdict, decide
from tests.kernels.decide_and_force.cases import (
    CUE,
    DEVICE,
    IMPLS,
    PLAIN,
    Kept,
    Token,
    kept,
    step_of,
)


def world() -> Kept:
    made = kept(4, 4)
    for slot in range(4):
        made.settings.enter(slot, SlotControl(lam=0.5, ema=0.5, handoff=(7,)))
        made.state.enter(slot, 9)
    return made


@pytest.mark.parametrize("impl", IMPLS)
def test_boundaries_stops_and_withdrawals_are_told_in_the_order_of_rows(impl: Impl) -> None:
    made = world()
    step = step_of(
        (2, 10, [Token(1, CUE, 1, -1, 0.25), Token(1, PLAIN, 2), Token(1, CUE, 3, -1, math.nan)]),
        (-1, 10, [Token(1, CUE, 1, -1, 0.25)]),
        (0, 10, [Token(1, CUE, 4, -1, 0.75), Token(7, CUE, 5, -1, 0.1), Token(3, CUE, 6, -1, 0.1)]),
        (3, 10, [Token(1, CUE, 4, -1, 0.75), Token(3, PLAIN, 5), Token(2, PLAIN, 6)]),
    )
    decide(*step, *made, impl=impl)
    told = made.ring.copy_out()
    assert told.ready
    assert told.head() == 5
    assert [record[:4] for record in told.records(0)] == [
        (2, 10, 1, Verdict(0)),
        (2, 12, 3, Verdict(0)),
        (0, 10, 4, Verdict.STOP | Verdict.SCORE),
        (3, 10, 4, Verdict.STOP | Verdict.SCORE),
        (3, 11, 5, Verdict.WITHDRAWN),
    ]
    assert str(told.records(0)[1]) == str(Record(2, 12, 3, Verdict(0), math.nan, 0.25))
    assert str(told.records(3)) == str(told.records(0)[3:])
    assert told.records(5) == []


@pytest.mark.parametrize("impl", IMPLS)
def test_what_was_written_over_is_counted_as_lost(impl: Impl) -> None:
    made = world()
    made.ring.head.fill_(1022 + 2**40)  # far beyond 32 bits
    before = made.ring.copy_out()
    for position in range(10, 13):
        step = step_of(*((slot, position, [Token(1, CUE, position, -1, 0.25)]) for slot in range(3)))
        decide(*step, *made, impl=impl)
    told = made.ring.copy_out()
    assert told.head() == 2**40 + 1031
    assert told.lost(2**40 + 7) == 0
    assert told.lost(2**40) == 7
    assert len(told.records(2**40)) == 1024
    last = told.records(2**40 + 1022)
    assert [(record.slot, record.position) for record in last] == [
        (slot, position) for position in range(10, 13) for slot in range(3)
    ]
    assert before.head() == 2**40 + 1022  # a copy does not change any more


def test_a_ring_takes_the_rows_of_a_step() -> None:
    with pytest.raises(ValueError, match="at least 1024"):
        Ring(1023)
    assert not Ring(1024, DEVICE).words.any()
    assert torch.equal(Ring(2048, DEVICE).head.cpu(), torch.zeros(1, dtype=torch.int64))
