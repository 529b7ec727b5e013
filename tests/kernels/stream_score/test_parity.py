"""The kernels give the specification's scores and states: shapes, types, strides, orders, repeats."""

from __future__ import annotations

import pytest
import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.rows import Rows
from desist.kernels.stream_score import StreamState
from desist.kernels.stream_score.shapes import project_tiles
from desist.kernels.stream_score.triton_project import project
from desist.kernels.stream_score.triton_walk import walk
from tests.kernels.closeness import TOLERANCE, assert_close
from tests.kernels.stream_score.cases import (
    DEVICE,
    PASSED,
    READ,
    Step,
    copied,
    entered,
    known,
    packed,
    rows_of,
    run,
    some_step,
)

TYPES = [torch.float32, torch.bfloat16, torch.float16]
# rows, hidden size, projection, states, drafts
SHAPES = [
    (1, 1, 1, 1, 0),
    (1, 512, 64, 64, 0),
    (2, 513, 7, 5, 1),
    (5, 96, 33, 17, 3),
    (15, 127, 16, 32, 2),
    (16, 128, 32, 16, 0),
    (17, 257, 13, 64, 1),
    (31, 64, 1, 3, 4),
    (33, 100, 3, 1, 7),
    (64, 48, 65, 31, 2),
    (97, 33, 5, 11, 0),
    (3, 40, 257, 300, 1),
    (1, 16384, 2, 2, 0),
]


def compare(step: Step, state: StreamState, head_type: torch.dtype, projection: int) -> None:
    head = packed(step.hidden.shape[1], projection, state.h.shape[2], head_type)
    twin = copied(state)
    bound = TOLERANCE[head_type]
    assert_close("score", run(step, state, head), run(step, twin, head, "torch"), bound)
    assert torch.equal(state.position, twin.position)
    assert_close("state", known(state), known(twin), bound)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "projection", "states", "drafts"), SHAPES, ids=lambda size: str(size)
)
def test_shapes_and_types(
    rows: int, width: int, projection: int, states: int, drafts: int, dtype: torch.dtype
) -> None:
    compare(some_step(rows, width, drafts, dtype), entered(rows, states, drafts), dtype, projection)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_weights_that_pass_by_in_chunks(steps: int, dtype: torch.dtype) -> None:
    """The product alone, with small tiles: 19 rows, 2 splits of a width that the last one does not fill."""
    width = 32 * steps + 7
    step = some_step(19, width, 0, dtype)
    weight = packed(width, 20, 1, dtype).inp
    partial = torch.empty((2, 19, 20), device=DEVICE)
    project[2, 2, 1](
        step.hidden, step.at, step.rows.slot, step.flags, weight, partial, 19, width, 20, steps,
        *step.hidden.stride(), ROW_TILE=16, BLOCK_N=16, BLOCK_K=32, HELD=steps == 1,
    )  # fmt: skip
    x, span = step.hidden[step.at.long()].float(), 32 * steps
    expected = torch.stack(
        [x[:, part] @ weight.float()[:, part].T for part in (slice(span), slice(span, None))]
    )
    skipped = (step.rows.slot < 0) | (step.flags != READ)
    assert_close("partial", partial, expected.masked_fill(skipped[:, None], torch.nan), TOLERANCE[dtype])


def test_a_head_so_wide_that_its_weights_pass_by() -> None:
    assert not project_tiles(4096, 64, weight_bytes=4, tensor_cores=False).held
    compare(some_step(2, 4096, 0, torch.float32), entered(2, 3, 0), torch.float32, 64)


@pytest.mark.parametrize("head_type", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_hidden_states_of_another_type_than_the_head(dtype: torch.dtype, head_type: torch.dtype) -> None:
    compare(some_step(18, 70, 1, dtype), entered(18, 20, 1), head_type, 37)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stride", ["rows", "columns", "transposed", "at"])
def test_strides(stride: str, dtype: torch.dtype) -> None:
    step = some_step(19, 50, 1, dtype)
    if stride == "rows":
        step = step._replace(hidden=torch.cat((step.hidden, step.hidden), 1)[:, :50])
    elif stride == "columns":
        step = step._replace(hidden=step.hidden.repeat_interleave(2, 1)[:, ::2])
    elif stride == "transposed":
        step = step._replace(hidden=step.hidden.T.contiguous().T)
    else:
        spread = Rows(*(column.repeat_interleave(2)[::2] for column in step.rows))
        at, flags = step.at.long().repeat_interleave(2)[::2], step.flags.repeat_interleave(2)[::2]
        step = step._replace(at=at, flags=flags, rows=spread)
    compare(step, entered(19, 9, 1), dtype, 21)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_empty_batch(impl: str) -> None:
    state = entered(2, 4, 0)
    before = copied(state)
    score = run(some_step(0, 8, 0, torch.float32), state, packed(8, 4, 4), impl)
    assert score.shape == (0,)
    assert score.dtype == torch.float32
    assert torch.equal(state.h, before.h)
    assert torch.equal(state.position, before.position)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_row_scores_the_same_alone_and_in_any_order(dtype: torch.dtype) -> None:
    head = packed(130, 40, 24, dtype)
    requests = [(slot, 10 + slot, 1 + slot % 3) for slot in range(17)]
    whole = rows_of(requests)
    hidden = torch.randn(len(whole.slot), 130, generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype)

    def scores(order: list[int]) -> dict[int, list[float]]:
        rows = rows_of([requests[i] for i in order])
        at = torch.cat([torch.nonzero(whole.slot == requests[i][0])[:, 0] for i in order]).int()
        flags = torch.full_like(at, READ, dtype=torch.uint8)
        found = run(Step(hidden, at, rows, flags), entered(17, 24, 2), head)
        return {i: found[rows.slot == requests[i][0]].tolist() for i in order}

    together = scores(list(range(17)))
    assert scores(torch.randperm(17, generator=torch.Generator().manual_seed(4)).tolist()) == together
    for alone in (0, 8, 16):
        assert scores([alone])[alone] == together[alone]


def test_the_same_twice_bit_for_bit() -> None:
    head, step = packed(65, 20, 30, torch.bfloat16), some_step(40, 65, 3, torch.bfloat16)
    first, second = entered(40, 30, 3), entered(40, 30, 3)
    assert torch.equal(run(step, first, head).nan_to_num(-1), run(step, second, head).nan_to_num(-1))
    assert torch.equal(first.h, second.h)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_nan_row_makes_its_own_request_nan_and_no_other(dtype: torch.dtype) -> None:
    head = packed(30, 20, 10, dtype)
    rows = rows_of([(0, 10, 2), (1, 11, 2)])
    hidden = torch.randn(4, 30, generator=torch.Generator().manual_seed(5)).to(DEVICE, dtype)
    flags = torch.full((4,), READ, dtype=torch.uint8, device=DEVICE)
    at = torch.arange(4, dtype=torch.int32, device=DEVICE)
    clean = run(Step(hidden, at, rows, flags), entered(2, 10, 1), head)
    hidden[0, 7] = torch.nan
    step, state, twin = Step(hidden, at, rows, flags), entered(2, 10, 1), entered(2, 10, 1)
    score = run(step, state, head)
    assert score[:2].isnan().all()
    assert torch.equal(score[2:], clean[2:])
    assert run(step, twin, head, "torch")[:2].isnan().all()


def test_a_row_that_does_not_count_has_no_score_whatever_the_buffers_hold() -> None:
    """The walk alone: its buffers hold numbers, where elsewhere here they hold NaN."""
    rows, head, state = rows_of([(0, 10, 2)]), packed(8, 16, 16), entered(1, 16, 1)
    flags = torch.tensor([READ, PASSED], dtype=torch.uint8, device=DEVICE)
    gated, projected = torch.ones((2, 2, 16), device=DEVICE), torch.ones((2, 16), device=DEVICE)
    score = torch.empty(2, device=DEVICE)
    walk[(2,)](
        rows.slot, rows.position, rows.local, flags, gated, projected, head.out, head.out_bias,
        state.position, state.h, score, 2, state.window, 16, 16, BLOCK_H=16, BLOCK_P=16,
    )  # fmt: skip
    assert score.isnan().tolist() == [False, True]
    assert torch.equal(state.saved(0, 11), state.saved(0, 10))


def test_idle_rows_read_nothing_and_write_nothing() -> None:
    step = some_step(20, 16, 0, torch.float32)
    step = step._replace(
        rows=step.rows._replace(slot=torch.full_like(step.rows.slot, -1)),
        at=torch.full_like(step.at, 2**30),
        flags=torch.full_like(step.flags, int(Flag.COUNTED)),
    )
    state = entered(20, 8, 0)
    before = copied(state)
    assert run(step, state, packed(16, 8, 8)).isnan().all()
    assert torch.equal(state.position, before.position)
    assert torch.equal(state.h, before.h)
