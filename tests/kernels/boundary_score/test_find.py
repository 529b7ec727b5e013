"""Finding boundaries: the kernel equals the specification, which equals a walk over the accepted tokens."""

from __future__ import annotations

import random

import pytest
import torch

from desist.kernels.boundary_score import Automaton, BoundaryState, Flag, find_boundaries
from desist.kernels.choice import Impl
from desist.kernels.rows import Rows
from tests.kernels.boundary_score.cases import (
    DEVICE,
    STATES,
    VOCABULARY,
    automaton,
    rows_of,
    step,
)
from tests.kernels.poison import poisoned

IMPLS: tuple[Impl, ...] = ("torch", "triton")


def entries(state: BoundaryState) -> list[tuple[int, ...]]:
    """The valid entries; what lies behind a tag of -1 is nothing."""
    values = torch.stack((state.position, state.automaton, state.count, state.periods, state.zone), -1)
    return [tuple(entry) if entry[0] >= 0 else (-1,) for entry in values.reshape(-1, 5).tolist()]


def assert_same(rows: Rows, tables: Automaton, states: dict[str, BoundaryState]) -> None:
    expected = find_boundaries(rows, tables, states["torch"], impl="torch")
    with poisoned():
        found = find_boundaries(rows, tables, states["triton"], impl="triton")
    for name, one, other in zip(expected._fields, expected, found, strict=True):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), f"{name}: {one.tolist()} is not {other.tolist()}"
    assert entries(states["torch"]) == entries(states["triton"])


@pytest.mark.parametrize("every_n", [0, 1, 5])
@pytest.mark.parametrize("window", [2, 3, 6])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 31, 64, 65, 257])
def test_kernel_equals_specification(count: int, window: int, every_n: int) -> None:
    seed = count * 10 + window
    rows, states, _ = step(seed, count, window)
    assert_same(rows, automaton(seed, every_n), states)


def test_the_largest_step() -> None:
    rows, states, _ = step(5, 1024, 4)
    assert_same(rows, automaton(5, 3), states)


def test_rows_that_are_columns_of_a_table() -> None:
    rows, states, _ = step(8, 33, 4)
    wide = torch.stack(tuple(rows), 1).repeat_interleave(2, 0)
    assert_same(Rows(*(wide[::2, number] for number in range(4))), automaton(8), states)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_refused_drafts_leave_no_trace(impl: Impl, drafts: int) -> None:
    """Steps with drafts of which some are accepted give what reading the accepted tokens alone gives."""
    rng = random.Random(drafts)
    tables = automaton(drafts, every_n=4)
    state, alone = BoundaryState(3, drafts + 2, DEVICE), BoundaryState(1, 2, DEVICE)
    state.enter(1, 9, 2)
    alone.enter(0, 9, 2)
    position = 10
    for _ in range(12):
        tokens = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, drafts + 1))]
        found = find_boundaries(rows_of((1, position, tokens)), tables, state, impl=impl)
        for row in range(rng.randint(1, len(tokens))):
            one = find_boundaries(rows_of((0, position, tokens[row : row + 1])), tables, alone, impl="torch")
            assert (one.flags[0], one.count[0], one.zone[0]) == (
                found.flags[row],
                found.count[row],
                found.zone[row],
            )
            position += 1


@pytest.mark.parametrize("impl", IMPLS)
def test_a_slot_is_lost_until_it_is_entered_again(impl: Impl) -> None:
    tables, state = automaton(1), BoundaryState(2, 4, DEVICE)
    state.enter(0, 5, 0)
    assert find_boundaries(rows_of((0, 6, [1, 2, 3])), tables, state, impl=impl).flags[0] != Flag.LOST
    # The impossible token at 7 takes away what the draft of the step before had left there.
    lost = find_boundaries(rows_of((0, 6, [1, VOCABULARY, 3])), tables, state, impl=impl)
    assert (lost.flags == Flag.LOST).tolist() == [False, True, True]
    assert find_boundaries(rows_of((0, 8, [1])), tables, state, impl=impl).flags.tolist() == [Flag.LOST]
    assert find_boundaries(rows_of((0, 9, [1])), tables, state, impl=impl).flags.tolist() == [Flag.LOST]
    state.enter(0, 9, STATES - 1, count=3, zone=2)
    again = find_boundaries(rows_of((0, 10, [1])), tables, state, impl=impl)
    assert again.flags[0] != Flag.LOST
    assert again.count[0] >= 3


@pytest.mark.parametrize("impl", IMPLS)
def test_more_rows_than_the_window_holds_are_lost_and_touch_nothing(impl: Impl) -> None:
    tables, state = automaton(1), BoundaryState(1, 3, DEVICE)
    state.enter(0, 5, 0)
    found = find_boundaries(rows_of((0, 6, [1, 2, 3, 4])), tables, state, impl=impl)
    assert (found.flags == Flag.LOST).tolist() == [False, False, True, True]
    assert sorted(state.position[0].tolist()) == [5, 6, 7]


@pytest.mark.parametrize("impl", IMPLS)
def test_left_slots_and_first_positions_are_lost(impl: Impl) -> None:
    tables, state = automaton(1), BoundaryState(2, 3, DEVICE)
    state.enter(0, 5, 0)
    state.leave(0)
    found = find_boundaries(rows_of((0, 6, [1]), (1, 0, [1])), tables, state, impl=impl)
    assert found.flags.tolist() == [Flag.LOST, Flag.LOST]
    assert found.compact.tolist() == [-1, -1]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_period_that_ends_inside_a_character_is_a_boundary_at_its_end(impl: Impl) -> None:
    half, whole = Flag.THINKING | Flag.COUNTED, Flag.THINKING | Flag.COUNTED | Flag.WHOLE
    tables = Automaton.of([0, 1], [[0, 0]], [[int(half), int(whole)]], every_n=3, device=DEVICE)
    state = BoundaryState(1, 9, DEVICE)
    state.enter(0, 0, 0)
    found = find_boundaries(rows_of((0, 1, [1, 1, 0, 0, 1, 1, 1])), tables, state, impl=impl)
    assert ((found.flags & Flag.BOUNDARY) > 0).tolist() == [False, False, False, False, True, True, False]
    assert found.compact.tolist() == [4, 5, -1, -1, -1, -1, -1]


def test_order_of_requests_does_not_matter() -> None:
    _, states, requests = step(77, 40, 4)
    tables = automaton(77, 2)
    before = find_boundaries(rows_of(*requests), tables, states["torch"], impl="torch")
    random.Random(0).shuffle(requests)
    moved = rows_of(*requests)
    after = find_boundaries(moved, tables, states["triton"], impl="triton")
    rows, _, _ = step(77, 40, 4)

    def by_place(rows: Rows, flags: torch.Tensor, count: torch.Tensor) -> list[tuple[int, ...]]:
        whole = zip(*(column.tolist() for column in (*rows, flags, count)), strict=True)
        return sorted(whole)

    assert by_place(rows, before.flags, before.count) == by_place(moved, after.flags, after.count)
    assert before.n == after.n
