"""The public function and the packing: what is refused, what is rounded, which tiles are taken."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from desist.kernels.stream_score import StreamState, pack_head, stream_score
from desist.kernels.stream_score.shapes import ROW_TILE, parts, project_tiles, row_groups, shipped
from tests.kernels.stream_score.cases import DEVICE, entered, packed, run, some_step, weights


def test_auto_is_the_specification_where_there_is_no_gpu() -> None:
    step, head = some_step(5, 24, 1, torch.float32), packed(24, 6, 4)
    expected = run(step, entered(5, 4, 1), head, "torch" if DEVICE == "cpu" else "triton")
    found = stream_score(*step, entered(5, 4, 1), head)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))


def test_it_needs_no_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import desist.kernels.stream_score, desist.kernels.stream_score.shapes, desist.kernels.cost"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("width", "states"), [(23, 4), (24, 5)])
def test_a_head_of_other_sizes_is_refused(width: int, states: int) -> None:
    with pytest.raises(ValueError, match="for this head"):
        run(some_step(2, width, 0, torch.float32), entered(2, states, 0), packed(24, 6, 4))


def test_matrices_are_rounded_and_the_rest_is_kept() -> None:
    plain = weights(10, 6, 4)
    head = pack_head(plain, torch.bfloat16, "cpu")
    back = head.rounded()
    for layer, packed_layer in zip(plain[:3], back[:3], strict=True):
        assert torch.equal(packed_layer.weight, layer.weight.bfloat16().float())
        assert torch.equal(packed_layer.bias, layer.bias)
    assert torch.equal(back.head.weight, plain.head.weight)
    assert torch.equal(back.head.bias, plain.head.bias)
    assert (head.width, head.projection, head.states) == (10, 6, 4)


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        pack_head(weights(3, 2, 1), torch.float64, "cpu")


def test_entering_forgets_what_the_slot_held() -> None:
    state = StreamState(2, 4, 3)
    for position in (5, 6):
        state.enter(0, position, torch.full((3,), float(position)))
    assert state.position[0].tolist() == [-1, -1, 6, -1]
    assert state.saved(0, 6).tolist() == [6.0] * 3
    assert state.position[1].tolist() == [-1] * 4


def test_sizes_that_hold_nothing_are_refused() -> None:
    for sizes in ((0, 2, 1), (1, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="hold nothing"):
            StreamState(*sizes)
    with pytest.raises(ValueError, match="after a token"):
        StreamState(1, 2, 1).enter(0, -1)


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("projection", [1, 16, 64, 300, 1024])
@pytest.mark.parametrize("width", [1, 512, 1536, 5120, 16384])
def test_the_splits_cover_the_hidden_size_once(width: int, projection: int, tensor_cores: bool) -> None:
    size = 2 if tensor_cores else 4
    tiles = project_tiles(width, projection, weight_bytes=size, tensor_cores=tensor_cores)
    span = tiles.block_k * tiles.steps
    assert (tiles.splits(width) - 1) * span < width <= tiles.splits(width) * span
    assert tiles.block_n * span * size <= 64 * 1024
    programs = parts(projection, tiles.block_n) * tiles.splits(width)
    for rows in (1, 64, 1024):
        assert 1 <= row_groups(rows, programs) <= parts(rows, ROW_TILE)


def test_what_is_shipped_is_listed_once() -> None:
    found = shipped()
    assert len({repr(one[1:]) for one in found}) == len({one.name for one in found}) == len(found)
    assert {one.kernel for one in found} == {"project", "reduce", "gates", "walk"}
