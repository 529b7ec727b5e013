"""The state by position: drafts refused, slots entered and lost, preemption, and whole requests."""

from __future__ import annotations

import pytest
import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.reference import min_gru_scan
from desist.kernels.rows import window_for
from desist.kernels.stream_score import PackedHead, StreamState
from tests.kernels.closeness import TOLERANCE, assert_close
from tests.kernels.stream_score.cases import DEVICE, PASSED, READ, Step, copied, packed, rows_of, run

IMPLS = ["torch", "triton"]
WIDTH, PROJECTION, STATES = 20, 12, 9


@pytest.fixture
def head() -> PackedHead:
    return packed(WIDTH, PROJECTION, STATES)


def some_hidden(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def step_of(
    requests: list[tuple[int, int, int]], hidden: torch.Tensor, flags: list[int] | None = None
) -> Step:
    rows = rows_of(requests)
    count = rows.slot.shape[0]
    bits = torch.tensor(flags or [READ] * count, dtype=torch.uint8, device=DEVICE)
    return Step(hidden, torch.arange(count, dtype=torch.int32, device=DEVICE), rows, bits)


def new_state(drafts: int = 0, slots: int = 2) -> StreamState:
    return StreamState(slots, window_for(drafts), STATES, DEVICE)


@pytest.mark.parametrize("impl", IMPLS)
def test_token_by_token_is_the_scan(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(12), new_state()
    state.enter(1, 4)
    scores = [run(step_of([(1, 5 + t, 1)], hidden[t : t + 1]), state, head, impl) for t in range(12)]
    assert_close("scan", torch.cat(scores), min_gru_scan(hidden, head.rounded()), TOLERANCE[torch.float32])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_refused_drafts_leave_no_trace(impl: str, accepted: int, head: PackedHead) -> None:
    """Steps of a token and three drafts, of which some are refused: what counts scores like the scan."""
    truth, state, scores, t = some_hidden(14), new_state(drafts=3), [], 0
    state.enter(0, 99)
    while t + 1 + accepted <= len(truth):
        kept = truth[t : t + 1 + accepted]
        hidden = torch.cat((kept, some_hidden(3 - accepted, seed=t + 1)))
        scores.append(run(step_of([(0, 100 + t, 4)], hidden), state, head, impl)[: len(kept)])
        t += len(kept)
    expected = min_gru_scan(truth[:t], head.rounded())
    assert_close("kept", torch.cat(scores), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("impl", IMPLS)
def test_a_row_that_does_not_count_carries_the_state_over(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(3), new_state(drafts=2)
    state.enter(0, 9)
    score = run(step_of([(0, 10, 3)], hidden, [READ, PASSED, READ]), state, head, impl)
    assert score.isnan().tolist() == [False, True, False]
    expected = min_gru_scan(hidden[[0, 2]], head.rounded())
    assert_close("counted", score[[0, 2]], expected, TOLERANCE[torch.float32])
    assert torch.equal(state.saved(0, 11), state.saved(0, 10))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_slot_that_was_never_entered_stays_lost_until_it_is(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(2), new_state(drafts=1)
    for first in (10, 11, 12):
        assert run(step_of([(0, first, 2)], hidden), state, head, impl).isnan().all()
    state.enter(0, 12)
    assert not run(step_of([(0, 13, 2)], hidden), state, head, impl).isnan().any()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_gap_in_the_positions_loses_the_slot(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(1), new_state()
    state.enter(0, 9)
    assert not run(step_of([(0, 10, 1)], hidden), state, head, impl).isnan().any()
    assert run(step_of([(0, 12, 1)], hidden), state, head, impl).isnan().all()
    assert run(step_of([(0, 13, 1)], hidden), state, head, impl).isnan().all()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_lost_row_loses_what_follows_even_where_an_old_draft_stood(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(3), new_state(drafts=2)
    state.enter(0, 9)
    assert not run(step_of([(0, 10, 3)], hidden), state, head, impl).isnan().any()
    flags = [READ, READ | int(Flag.LOST), READ]
    score = run(step_of([(0, 10, 3)], hidden, flags), state, head, impl)
    assert score.isnan().tolist() == [False, True, True]
    assert run(step_of([(0, 12, 1)], hidden), copied(state), head, impl).isnan().all()
    assert not run(step_of([(0, 11, 1)], hidden), state, head, impl).isnan().any()


@pytest.mark.parametrize("impl", IMPLS)
def test_the_first_token_of_all_has_nothing_before_it(impl: str, head: PackedHead) -> None:
    assert run(step_of([(0, 0, 1)], some_hidden(1)), new_state(), head, impl).isnan().all()


@pytest.mark.parametrize("impl", IMPLS)
def test_more_rows_than_the_window_takes_are_left_alone(impl: str, head: PackedHead) -> None:
    state = new_state(drafts=1)
    state.enter(0, 9)
    score = run(step_of([(0, 10, 4)], some_hidden(4)), state, head, impl)
    assert score.isnan().tolist() == [False, False, True, True]
    assert sorted(state.position[0].tolist()) == [9, 10, 11]


@pytest.mark.parametrize("impl", IMPLS)
def test_preempted_and_resumed_elsewhere(impl: str, head: PackedHead) -> None:
    hidden, state = some_hidden(6), new_state(drafts=1)
    state.enter(0, 9)
    scores = [run(step_of([(0, 10 + t, 1)], hidden[t : t + 1]), state, head, impl) for t in range(3)]
    state.enter(1, 12, state.saved(0, 12))
    state.enter(0, 50)
    scores += [run(step_of([(1, 13 + t, 1)], hidden[3 + t : 4 + t]), state, head, impl) for t in range(3)]
    assert_close("resumed", torch.cat(scores), min_gru_scan(hidden, head.rounded()), TOLERANCE[torch.float32])


@pytest.mark.parametrize("impl", IMPLS)
def test_what_is_saved_of_a_forgotten_position_scores_nothing(impl: str, head: PackedHead) -> None:
    state = new_state()
    state.enter(0, 9)
    assert state.saved(0, 9).tolist() == [0.0] * STATES
    assert state.saved(0, 7).isnan().all()
    state.enter(1, 7, state.saved(0, 7))
    assert run(step_of([(1, 8, 1)], some_hidden(1)), state, head, impl).isnan().all()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_slot_that_was_left_scores_nothing(impl: str, head: PackedHead) -> None:
    state = new_state()
    state.enter(0, 9)
    state.leave(0)
    assert run(step_of([(0, 10, 1)], some_hidden(1)), state, head, impl).isnan().all()


@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
def test_a_random_run_equals_the_specification(drafts: int, head: PackedHead) -> None:
    """Requests that come and go, with drafts kept and refused, tokens that count or not, and gaps."""
    rng = torch.Generator().manual_seed(drafts)

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=rng))

    slots = 5
    ours = new_state(drafts, slots)
    spec = new_state(drafts, slots)
    at: dict[int, int] = {}
    bound = TOLERANCE[torch.float32]
    for turn in range(12):
        for slot in range(slots):
            if slot not in at or below(10) == 0:
                at[slot] = below(50)
                for state in (ours, spec):
                    state.enter(slot, at[slot])
            at[slot] += below(20) == 0
        requests = [(slot, at[slot] + 1, 1 + below(drafts + 1)) for slot in range(slots) if below(4)]
        count = sum(rows for _, _, rows in requests)
        flags = [READ if below(5) else PASSED | int(Flag.LOST) * (below(4) == 0) for _ in range(count)]
        step = step_of(requests, some_hidden(count, seed=turn), flags)
        assert_close(f"turn {turn}", run(step, ours, head), run(step, spec, head, "torch"), bound)
        assert torch.equal(ours.position, spec.position)
        for slot, _, rows in requests:
            at[slot] += 1 + below(rows)
