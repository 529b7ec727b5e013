"""The whole op behind its door: scores stand at the boundaries, bad arguments are refused with a remedy."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch

from desist.kernels import boundary_score as op
from desist.kernels.boundary_score import Automaton, BoundaryState, Flag, boundary_score, pack, shapes
from tests.kernels.boundary_score.cases import (
    DEVICE,
    automaton,
    hidden_states,
    layers,
    probe,
    rows_of,
    step,
)
from tests.kernels.closeness import TOLERANCE, assert_close
from tests.kernels.poison import poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [0, 1, 13, 40, 67])
def test_whole_step(count: int, dtype: torch.dtype) -> None:
    rows, states, _ = step(count, count, 4)
    net, taps = probe(70, 2, 19, 6, 1, dtype=dtype), hidden_states(count + 3, 70, 2, dtype)
    at = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.int32)
    tables = automaton(count, 3)
    expected = boundary_score(taps, at, rows, tables, states["torch"], net, impl="torch")
    with poisoned():
        found = boundary_score(taps, at, rows, tables, states["triton"], net, impl="triton")
    for name, one, other in zip(expected._fields[:-1], expected, found, strict=False):
        assert torch.equal(one, other), name
    assert_close(f"{count} rows, {dtype}", found.score, expected.score, TOLERANCE[dtype])
    wanted = ((found.flags & 3) == 3) & (found.flags != Flag.LOST)
    assert torch.equal(found.score.isnan(), ~wanted)


def test_scores_do_not_depend_on_the_order_of_requests_nor_on_the_others() -> None:
    _, _, requests = step(7, 45, 4)
    net, tables = probe(50, 1, 8, 1), automaton(7, 2)
    taps = hidden_states(1000, 50, 1)

    def scores(requests: list[tuple[int, int, list[int]]]) -> dict[tuple[int, int], float]:
        _, states, _ = step(7, 45, 4)
        rows = rows_of(*requests)
        at = (rows.slot.clamp(min=0) * 7 + rows.position).to(torch.int32)
        score = boundary_score(taps, at, rows, tables, states["triton"], net, impl="triton").score
        where = zip(rows.slot.tolist(), rows.position.tolist(), score.tolist(), strict=True)
        return {(slot, position): value for slot, position, value in where if value == value}

    before = scores(requests)
    assert len(before) > 5
    assert scores(requests) == before
    random.Random(1).shuffle(requests)
    assert scores(requests) == before
    alone = [found for request in requests for found in scores([request]).items()]
    assert dict(alone) == before


def test_importing_needs_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, desist.kernels.boundary_score as op\n"
        "from desist.kernels.boundary_score import shapes\n"
        "shapes.shipped()\n"
        "op.mlp_score_rows([torch.ones(1, 2)], torch.zeros(1, dtype=int), torch.zeros(1, dtype=int),\n"
        "    op.pack([op.reference.Layer(torch.ones(1, 2), torch.ones(1))], torch.float32))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_refusals() -> None:
    net, tables, state = probe(4, 2, 3, 1), automaton(0), BoundaryState(1, 2, DEVICE)
    rows = rows_of(*((-1, 5, [0]) for _ in range(op.MAX_ROWS + 1)))
    with pytest.raises(ValueError, match="at most 1024"):
        op.find_boundaries(rows, tables, state)
    at = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="reads 2 taps, not 1"):
        op.mlp_score_rows(hidden_states(1, 4, 1), at, at, net)
    with pytest.raises(ValueError, match=r"must be \[T, 4\]"):
        op.mlp_score_rows(hidden_states(1, 5, 2), at, at, net)
    with pytest.raises(ValueError, match="hold nothing"):
        BoundaryState(1, 1)
    with pytest.raises(ValueError, match="0 or more"):
        state.enter(0, -1, 0)


@pytest.mark.parametrize(
    ("sizes", "taps", "dtype", "said"),
    [
        ((8, 1), 9, torch.float32, "9 taps"),
        ((8, 1), 3, torch.float32, "do not divide by 3 taps"),
        ((8, 1), 1, torch.float64, "torch.float64"),
        ((8, 2), 1, torch.float32, "give 1 to 1 outputs"),
        ((8, 1025, 1), 1, torch.float32, "give 1 to 1024 outputs"),
        ((8, 4, 257, 1), 1, torch.float32, "give 1 to 256 outputs"),
        ((8, 4, 4, 4, 1), 1, torch.float32, "4 layers"),
    ],
)
def test_probes_that_are_refused(sizes: tuple[int, ...], taps: int, dtype: torch.dtype, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pack(layers(*sizes), dtype, taps)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (([0, 1], [[0]], [[0]]), "a class is not in 0..0"),
        (([0], [[1]], [[0]]), "a state is not in 0..0"),
        (([0], [[0]], [[32]]), "a flag is not in 0..31"),
        (([0], [[0, 0]], [[0]]), "are no automaton"),
        (([], [[0]], [[0]]), "are no automaton"),
    ],
)
def test_automata_that_are_refused(tables: tuple[list[int], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Automaton.of(*tables)


def test_shapes_stay_within_their_bounds() -> None:
    for hidden in (1, 100, 512, 1536, 4096, 5120, 16384):
        for taps in range(1, 9):
            for width in (1, 16, 17, 100, 256, 1024):
                for single in (False, True):
                    shape = shapes.first_layer(hidden, taps, width, single=single)
                    splits = taps * shape.splits_per_tap
                    assert shape.block_k * shape.chunks * shape.splits_per_tap >= hidden
                    assert splits * width <= 2**14
                    assert splits <= 128


def test_names_of_shipped_configurations_are_their_own() -> None:
    names = [entry.name for entry in shapes.shipped()]
    assert len(names) == len(set(names))
