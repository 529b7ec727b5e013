"""Deciding: the kernel equals the specification, bit for bit, and both obey the rules of the stop machine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import Decided, Entry, SlotControl, Verdict, decide
from desist.kernels.rows import Rows
from tests.kernels.decide_and_force.cases import (
    ANSWER,
    CUE,
    HALF,
    IMPLS,
    PLAIN,
    Kept,
    Request,
    Step,
    Token,
    bits,
    decide_alike,
    entries,
    kept,
    some_step,
    step_of,
)

GO_ON, STOP, HOLD, SCORE, BUDGET, ASKED = (
    Verdict(0),
    Verdict.STOP,
    Verdict.HOLD,
    Verdict.SCORE,
    Verdict.BUDGET,
    Verdict.ASKED,
)


@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 31, 64, 65, 257])
def test_kernel_equals_specification(count: int, window: int) -> None:
    for seed in range(4):
        requests, worlds = some_step(seed * 1000 + count * 10 + window, count, window)
        decide_alike(step_of(*requests), worlds)


def test_the_largest_step() -> None:
    requests, worlds = some_step(5, 1024, 4)
    verdicts = decide_alike(step_of(*requests), worlds).verdict
    assert all((verdicts & verdict).any() for verdict in Verdict)  # nothing is left untried


def test_rows_that_are_columns_of_a_table() -> None:
    requests, worlds = some_step(8, 33, 4)
    rows, *others = step_of(*requests)
    wide = torch.stack(tuple(rows), 1).repeat_interleave(2, 0)
    apart = (column.repeat_interleave(3)[::3] for column in others)
    decide_alike(Step(Rows(*(wide[::2, number] for number in range(4))), *apart), worlds)


def test_the_order_of_requests_and_the_others_do_not_matter() -> None:
    def by_place(requests: list[Request], decided: Decided) -> dict[tuple[int, int], tuple[int, ...]]:
        rows = step_of(*requests).rows
        columns = (rows.slot, rows.position, *(bits(column) for column in decided))
        whole = zip(*(column.tolist() for column in columns), strict=True)
        return {(slot, position): found for slot, position, *found in whole if slot >= 0}

    requests, worlds = some_step(7, 45, 4)
    before = by_place(requests, decide(*step_of(*requests), *worlds["triton"], impl="triton"))
    _, worlds = some_step(7, 45, 4)
    random.Random(0).shuffle(requests)
    assert by_place(requests, decide(*step_of(*requests), *worlds["triton"], impl="triton")) == before
    _, worlds = some_step(7, 45, 4)
    for request in requests[:12]:
        alone = by_place([request], decide(*step_of(request), *worlds["triton"], impl="triton"))
        assert alone.items() <= before.items()


def test_twice_the_same() -> None:
    found = []
    for _ in range(2):
        requests, worlds = some_step(9, 60, 5)
        decided = decide(*step_of(*requests), *worlds["triton"], impl="triton")
        found.append(([bits(column).tolist() for column in decided], entries(worlds["triton"].state)))
    assert found[0] == found[1]


def run(
    impl: Impl,
    control: SlotControl,
    tokens: Sequence[Token],
    *,
    world: Kept | None = None,
    first: int = 10,
) -> Decided:
    """Decide at tokens of slot 0 in one step."""
    if world is None:
        world = kept(1, len(tokens) + 1)
        world.settings.enter(0, control)
        world.state.enter(0, first - 1)
    return decide(*step_of((0, first, tokens)), *world, impl=impl)


def verdicts(decided: Decided) -> list[Verdict]:
    return [Verdict(verdict) for verdict in decided.verdict.tolist()]


def cues(*scores: float) -> list[Token]:
    return [Token(flags=CUE, count=number, score=score) for number, score in enumerate(scores, 1)]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_tie_does_not_stop_and_patience_counts_boundaries_in_a_row(impl: Impl) -> None:
    control = SlotControl(lam=0.5, patience=2, handoff=(1, 2))
    found = run(impl, control, cues(0.75, 0.5, 0.75, math.nan, 0.75))
    assert verdicts(found) == [GO_ON, GO_ON, GO_ON, GO_ON, STOP | SCORE]
    assert found.forced.tolist() == [-1, -1, -1, -1, 1]


@pytest.mark.parametrize("impl", IMPLS)
def test_warm_up_and_smoothing(impl: Impl) -> None:
    control = SlotControl(lam=0.6, warmup=2, ema=0.5)
    found = run(impl, control, cues(0.75, 0.25, 1.0))
    assert verdicts(found) == [GO_ON, GO_ON, STOP | SCORE]
    assert found.smoothed.tolist() == [0.75, 0.5, 0.75]
    assert found.locked.tolist() == [False, False, True]  # there is no hand-off


@pytest.mark.parametrize("impl", IMPLS)
def test_smoothing_rounds_as_python_does(impl: Impl) -> None:
    """A product and a sum that are rounded once instead of twice would differ in some of these."""
    rng = random.Random(3)
    scores = torch.tensor([rng.random() for _ in range(40)]).tolist()  # as float32
    world = kept(1, 41)
    world.settings.enter(0, SlotControl(ema=0.3))
    world.state.enter(0, 9)
    found = run(impl, SlotControl(), cues(*scores), world=world)
    smoothed, expected = scores[0], [scores[0]]
    for score in scores[1:]:
        smoothed = 0.3 * score + (1.0 - 0.3) * smoothed
        expected.append(smoothed)
    assert found.smoothed.tolist() == expected


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("mode", "said"), [("off", GO_ON), ("shadow", SCORE), ("active", STOP | SCORE)])
def test_modes(impl: Impl, mode: str, said: Verdict) -> None:
    assert verdicts(run(impl, SlotControl(mode, 0.5), cues(0.75))) == [said]  # type: ignore[arg-type]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_budget_waits_for_a_boundary_outside_a_zone_and_then_no_more(impl: Impl) -> None:
    world = kept(1, 9)
    world.settings.enter(0, SlotControl("off", soft=2, hard=5, handoff=(4,)), hold=True, known=9)
    world.state.enter(0, 9)
    tokens = [Token(0, flags, count) for count, flags in enumerate((PLAIN, PLAIN, CUE, PLAIN, HALF, CUE), 1)]
    found = run(impl, SlotControl(), tokens, world=world)
    assert verdicts(found) == [GO_ON, GO_ON, HOLD | BUDGET, GO_ON, GO_ON, STOP | BUDGET]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_token_after_the_known_one_may_have_opened_a_zone(impl: Impl) -> None:
    world = kept(1, 9)
    world.settings.enter(0, SlotControl(lam=0.5), known=10)
    world.state.enter(0, 9)
    tokens = [Token(0, CUE, 1, 10, 0.25), Token(0, CUE, 2, 11, 0.75), Token(0, CUE, 3, 11, 0.75)]
    assert verdicts(run(impl, SlotControl(), tokens, world=world)) == [GO_ON, HOLD | SCORE, HOLD | SCORE]
    world.settings.hold_off(0, False, 11)
    assert verdicts(run(impl, SlotControl(), tokens, world=world))[1] == STOP | SCORE


@pytest.mark.parametrize("impl", IMPLS)
def test_a_stop_asked_for_comes_at_once_but_waits_in_a_zone_for_64_tokens(impl: Impl) -> None:
    world = kept(2, 9)
    for slot, hold in enumerate((False, True)):
        world.settings.enter(slot, SlotControl("off"), hold=hold, known=99)
        world.settings.ask(slot, 3)
        world.state.enter(slot, 9)
    step = step_of((0, 10, [Token(0, HALF, 4), Token(0, PLAIN, 5)]), (1, 10, [Token(0, PLAIN, 66)]))
    assert verdicts(decide(*step, *world, impl=impl)) == [GO_ON, STOP | ASKED, GO_ON]
    assert verdicts(decide(*step_of((1, 11, [Token(0, PLAIN, 67)])), *world, impl=impl)) == [STOP | ASKED]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_hand_off_is_forced_token_by_token_and_then_ids_are_locked(impl: Impl) -> None:
    control = SlotControl(lam=0.5, handoff=(7, 8, 9))
    answer = [Token(token, ANSWER, 1) for token in (7, 8, 9, 3)]
    found = run(impl, control, [*cues(0.75), *answer])
    assert verdicts(found) == [STOP | SCORE, *[Verdict.STOPPED | SCORE] * 4]
    assert found.forced.tolist() == [7, 8, 9, -1, -1]
    assert found.locked.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_hand_off_that_was_not_carried_out_is_tried_again_at_the_next_boundary(impl: Impl) -> None:
    control = SlotControl(lam=0.5, hard=1, handoff=(7, 8))
    tokens = [*cues(0.75), Token(7, PLAIN, 2), Token(3, PLAIN, 3), Token(3, PLAIN, 4), Token(3, CUE, 5)]
    found = run(impl, control, [*tokens, Token(2, CUE, 6, score=0.75)])
    assert verdicts(found) == [
        STOP | SCORE,
        Verdict.STOPPED | SCORE,
        Verdict.WITHDRAWN,
        GO_ON,  # the budget is over, but no boundary has come
        GO_ON,
        STOP | SCORE,
    ]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_refused_draft_brings_the_stop_back(impl: Impl) -> None:
    world = kept(1, 4)
    world.settings.enter(0, SlotControl(lam=0.5, handoff=(7, 8)))
    world.state.enter(0, 9)
    drafts = [*cues(0.75), Token(3, PLAIN, 2), Token(3, CUE, 3, score=0.25)]
    found = run(impl, SlotControl(), drafts, world=world)
    assert verdicts(found) == [STOP | SCORE, Verdict.WITHDRAWN, GO_ON]
    assert found.forced.tolist() == [7, -1, -1]
    found = run(impl, SlotControl(), [Token(7, PLAIN, 2), Token(9, PLAIN, 3)], world=world, first=11)
    assert verdicts(found) == [Verdict.STOPPED | SCORE, Verdict.WITHDRAWN]
    found = run(impl, SlotControl(), [Token(8, PLAIN, 3)], world=world, first=12)
    assert verdicts(found) == [Verdict.STOPPED | SCORE]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_stop_at_a_refused_draft_vanishes(impl: Impl) -> None:
    world = kept(1, 4)
    world.settings.enter(0, SlotControl(lam=0.5, handoff=(7, 8)))
    world.state.enter(0, 9)
    found = run(impl, SlotControl(), [Token(3), *cues(0.75), Token(7)], world=world)
    assert found.forced.tolist() == [-1, 7, 8]
    found = run(impl, SlotControl(), [Token(4)], world=world, first=11)
    assert verdicts(found) == [GO_ON]
    assert found.forced.tolist() == [-1]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_slot_is_lost_until_it_is_entered_again(impl: Impl) -> None:
    world = kept(2, 4)
    for slot in (0, 1):
        world.settings.enter(slot, SlotControl(lam=0.5, handoff=(7,)))
        world.state.enter(slot, 9, Entry(stop=9))
    lost = decide(*step_of((0, 11, cues(0.75, 0.75)), (-1, 3, cues(0.75))), *world, impl=impl)
    assert verdicts(lost) == [Verdict.LOST, Verdict.LOST, GO_ON]
    assert lost.forced.tolist() == [-1, -1, -1]
    assert lost.smoothed.isnan().all()
    told = world.ring.copy_out().records(0)
    assert [(record.slot, record.position, record.verdict) for record in told] == [(0, 11, Verdict.LOST)]
    # What another kernel has lost is lost here, and takes away what an earlier draft had left.
    fine = decide(*step_of((1, 10, [Token(7), Token(1)])), *world, impl=impl)
    assert Verdict.LOST not in verdicts(fine)[1]
    gone = decide(*step_of((1, 10, [Token(7), Token(1, int(Flag.LOST))])), *world, impl=impl)
    assert verdicts(gone)[1] == Verdict.LOST
    assert verdicts(decide(*step_of((1, 12, [Token()])), *world, impl=impl)) == [Verdict.LOST]
    world.state.enter(1, 12, Entry(smoothed=0.25))
    again = decide(*step_of((1, 13, [Token()])), *world, impl=impl)
    assert verdicts(again) == [GO_ON]
    assert again.smoothed.tolist() == [0.25]


@pytest.mark.parametrize("impl", IMPLS)
def test_more_rows_than_the_window_holds_are_lost_and_touch_nothing(impl: Impl) -> None:
    world = kept(1, 3)
    world.state.enter(0, 5)
    found = decide(*step_of((0, 6, [Token()] * 4)), *world, impl=impl)
    assert verdicts(found) == [GO_ON, GO_ON, Verdict.LOST, Verdict.LOST]
    assert [world.state.kept(0, position) is not None for position in (5, 6, 7, 8)] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_step_of_drafts_equals_a_step_for_each(impl: Impl) -> None:
    requests, _ = some_step(11, 30, 6)
    _, worlds = some_step(11, 30, 6)
    together = decide(*step_of(*requests), *worlds[impl], impl=impl)
    _, worlds = some_step(11, 30, 6)
    alone: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(5):
        part = [
            (slot, first + number, rows[number : number + 1])
            for slot, first, rows in requests
            if number < len(rows)
        ]
        step = step_of(*part)
        decided = decide(*step, *worlds[impl], impl=impl)
        where = zip(step.rows.slot.tolist(), step.rows.position.tolist(), strict=True)
        what = zip(decided.verdict.tolist(), decided.forced.tolist(), strict=True)
        alone.update(zip(where, what, strict=True))
    rows = step_of(*requests).rows
    for slot, position, verdict, forced in zip(
        rows.slot.tolist(),
        rows.position.tolist(),
        together.verdict.tolist(),
        together.forced.tolist(),
        strict=True,
    ):
        if slot >= 0:
            assert alone[slot, position] == (verdict, forced)
