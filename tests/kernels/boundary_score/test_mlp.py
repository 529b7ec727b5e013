"""Scores: the split kernels equal the MLP on the rows laid side by side; a score knows no neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from desist import kernels
from desist.kernels import Layer
from desist.kernels.boundary_score import Packed, mlp_score_rows, pack
from tests.kernels.boundary_score.cases import DEVICE, hidden_states, places, probe
from tests.kernels.closeness import TOLERANCE, assert_close
from tests.kernels.poison import poisoned

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def plain(taps: list[torch.Tensor], at: torch.Tensor, chosen: torch.Tensor, probe: Packed) -> torch.Tensor:
    """The formula without this op's own reference."""
    rows = torch.cat([tap.float() for tap in taps], 1)[at.long()][chosen.long()]
    return kernels.mlp_score(rows, [Layer(layer.weight.float(), layer.bias) for layer in probe.layers])


def scored(taps: list[torch.Tensor], at: torch.Tensor, chosen: torch.Tensor, probe: Packed) -> torch.Tensor:
    with poisoned():
        return mlp_score_rows(taps, at, chosen, probe, impl="triton")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("hidden", "taps", "widths"),
    [
        (1, 1, (1,)),
        (5, 1, (3, 1)),
        (37, 2, (1,)),
        (64, 3, (17, 1)),
        (131, 2, (33, 7, 1)),
        (200, 1, (40, 16, 1)),
        (256, 8, (13, 5, 1)),
        (300, 3, (64, 1)),
        (515, 1, (1, 1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("chosen", [1, 5, 17])
def test_kernels_equal_the_formula(
    hidden: int, taps: int, widths: tuple[int, ...], dtype: torch.dtype, chosen: int
) -> None:
    net = probe(hidden, taps, *widths, dtype=dtype)
    states = hidden_states(23, hidden, taps, dtype)
    at, rows = places(19, chosen, 23)
    name = f"{taps}x{hidden} -> {widths}, {dtype}, {chosen} rows"
    assert_close(name, scored(states, at, rows, net), plain(states, at, rows, net), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("hidden", "taps", "widths"),
    [
        (1536, 2, (256, 64, 1)),
        (4096, 1, (96, 1)),
        (4200, 8, (16, 1)),
        (130, 1, (1024, 256, 1)),
        (5120, 3, (1,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sizes_in_use(hidden: int, taps: int, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    net = probe(hidden, taps, *widths, dtype=dtype)
    states = hidden_states(4, hidden, taps, dtype)
    at, rows = places(4, 3, 4)
    name = f"{taps}x{hidden} -> {widths}, {dtype}"
    assert_close(name, scored(states, at, rows, net), plain(states, at, rows, net), TOLERANCE[dtype])


@pytest.mark.parametrize("weights", DTYPES, ids=str)
@pytest.mark.parametrize("rows", DTYPES, ids=str)
def test_states_and_weights_of_different_types(rows: torch.dtype, weights: torch.dtype) -> None:
    net = probe(70, 2, 20, 1, dtype=weights)
    states = hidden_states(9, 70, 2, rows)
    at, chosen = places(9, 6, 9)
    expected = plain(states, at, chosen, net)
    assert_close(f"{rows} by {weights}", scored(states, at, chosen, net), expected, TOLERANCE[weights])


@pytest.mark.parametrize("taps", range(1, 9))
def test_taps_are_views_with_strides_of_their_own(taps: int) -> None:
    net = probe(37, taps, 9, 1)
    wide = torch.randn(taps, 40, 2 * 37 + 3, device=DEVICE)
    views = [
        wide[tap, 3 : 3 + 12, 1:38] if tap % 3 == 0 else  # row stride
        wide[tap, ::3, 2 : 2 + 2 * 37 : 2][:12] if tap % 3 == 1 else  # both strides
        wide[tap, :37, 5:17].T  # a column-major one
        for tap in range(taps)
    ]  # fmt: skip
    at, chosen = places(11, 7, 12)
    expected = plain([view.clone() for view in views], at, chosen, net)
    assert_close(f"{taps} views", scored(views, at, chosen, net), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", [(1,), (19, 1), (40, 12, 1)], ids=str)
def test_a_row_scores_the_same_alone_and_anywhere(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    net = probe(150, 2, *widths, dtype=dtype)
    states = hidden_states(20, 150, 2, dtype)
    at = torch.arange(20, dtype=torch.int32, device=DEVICE)
    together = scored(states, at, at, net)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.int32)
    assert torch.equal(together, scored(states, at, at, net))
    assert torch.equal(together[order.long()], scored(states, at, order, net))
    for row in (0, 15, 16, 19):
        assert torch.equal(together[row : row + 1], scored(states, at, at[row : row + 1], net))


def test_index_types_repeats_and_nobody() -> None:
    net = probe(20, 1, 6, 1)
    states = hidden_states(5, 20, 1)
    at = torch.tensor([4, 0, 4], dtype=torch.int64, device=DEVICE)
    rows = torch.tensor([2, -1, 0, 1, 2], device=DEVICE)
    score = scored(states, at, rows, net)
    assert score.isnan().tolist() == [False, True, False, False, False]
    assert_close(
        "repeats", score, mlp_score_rows(states, at, rows, net, impl="torch"), TOLERANCE[torch.float32]
    )
    assert score[0] == score[2] == score[4]


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_no_rows(impl: str) -> None:
    net = probe(20, 1, 6, 1)
    none = torch.empty(0, dtype=torch.int32, device=DEVICE)
    assert mlp_score_rows(hidden_states(5, 20, 1), none, none, net, impl=impl).shape == (0,)  # type: ignore[arg-type]


def test_a_nan_row_scores_nan_and_harms_no_other() -> None:
    for widths in ((1,), (17, 1), (17, 5, 1)):
        net = probe(40, 1, *widths)
        states = hidden_states(20, 40, 1)
        at = torch.arange(20, dtype=torch.int32, device=DEVICE)
        clean = scored(states, at, at, net)
        states[0][7, 3] = torch.nan
        found = scored(states, at, at, net)
        assert found.isnan().nonzero().flatten().tolist() == [7]
        found[7] = clean[7]
        assert torch.equal(found, clean)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # the interpreter tells of them
def test_an_overflow_scores_as_the_formula_does() -> None:
    first = Layer(torch.tensor([[3e38], [1.0]]), torch.zeros(2))
    rest = [Layer(torch.ones(3, 2), torch.zeros(3)), Layer(torch.ones(1, 3), torch.zeros(1))]
    net = pack([first, *rest], torch.float32, 1, DEVICE)
    at = torch.arange(2, dtype=torch.int32, device=DEVICE)
    states = [torch.tensor([[1e6], [-1e6]], device=DEVICE)]
    expected = plain(states, at, at, net)
    assert expected.tolist() == [1.0, 0.5]
    assert torch.equal(scored(states, at, at, net), expected)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("widths", [(1,), (3, 1), (3, 2, 1)], ids=str)
def test_an_infinite_row_scores_as_the_formula_does(widths: tuple[int, ...]) -> None:
    """The tiles are wider than the layers: what stands past the edge must not become NaN and spread."""
    ones = [Layer(torch.ones(out, inp), torch.zeros(out)) for inp, out in pairwise((1, *widths))]
    net = pack(ones, torch.float32, 1, DEVICE)
    at = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    states = [torch.tensor([[torch.inf]], device=DEVICE)]
    assert plain(states, at, at, net).tolist() == [1.0]
    assert scored(states, at, at, net).tolist() == [1.0]
