"""The specification: formulas, step equals scan, and a row's score does not depend on its neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from desist import kernels
from desist.kernels import Layer, MinGRUWeights


def layers(*sizes: int, seed: int = 0) -> list[Layer]:
    torch.manual_seed(seed)
    return [Layer(torch.randn(o, i) / i**0.5, torch.randn(o)) for i, o in pairwise(sizes)]


def gru(width: int, projection: int, states: int) -> MinGRUWeights:
    inp, gate, candidate, head = (
        layers(i, o, seed=s)[0]
        for s, (i, o) in enumerate(
            [(width, projection), (projection, states), (projection, states), (states + projection, 1)]
        )
    )
    return MinGRUWeights(inp, gate, candidate, head)


def test_mlp_score_is_the_formula() -> None:
    net = layers(5, 4, 3, 1)
    rows = torch.randn(7, 5)
    x = rows.double().numpy()
    for number, layer in enumerate(net):
        x = x @ layer.weight.double().numpy().T + layer.bias.double().numpy()
        if number < 2:
            x = np.maximum(x, 0)
    np.testing.assert_allclose(kernels.mlp_score(rows, net).numpy(), 1 / (1 + np.exp(-x[:, 0])), rtol=1e-5)


@pytest.mark.parametrize("width", [1, 37, 771])
@pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 50])
def test_a_row_scores_the_same_in_any_batch_and_place(width: int, batch: int) -> None:
    net = layers(width, 13, 6, 1)
    rows = torch.randn(batch, width)
    together = kernels.mlp_score(rows, net)
    alone = torch.cat([kernels.mlp_score(row[None], net) for row in rows])
    order = torch.randperm(batch)
    assert torch.equal(together, alone)
    assert torch.equal(together[order], kernels.mlp_score(rows[order], net))


def test_empty_batch_and_non_contiguous_rows() -> None:
    net = layers(6, 4, 1)
    assert kernels.mlp_score(torch.empty(0, 6), net).shape == (0,)
    wide = torch.randn(9, 12)
    assert torch.equal(kernels.mlp_score(wide[:, ::2], net), kernels.mlp_score(wide[:, ::2].clone(), net))


def test_a_nan_row_scores_nan_and_harms_no_other() -> None:
    net = layers(6, 4, 1)
    rows = torch.randn(5, 6)
    clean = kernels.mlp_score(rows, net)
    rows[2, 3] = torch.nan
    scores = kernels.mlp_score(rows, net)
    assert torch.isnan(scores[2])
    keep = torch.tensor([0, 1, 3, 4])
    assert torch.equal(scores[keep], clean[keep])


def test_min_gru_step_is_the_formula() -> None:
    weights = gru(5, 4, 3)
    state, x = torch.randn(2, 3), torch.randn(2, 5)
    projected = torch.relu(x @ weights.inp.weight.T + weights.inp.bias)
    z = torch.sigmoid(projected @ weights.gate.weight.T + weights.gate.bias)
    candidate = projected @ weights.candidate.weight.T + weights.candidate.bias
    expected = (1 - z) * state + z * candidate
    new, score = kernels.min_gru_step(state, x, weights)
    torch.testing.assert_close(new, expected)
    both = torch.cat((expected, projected), 1)
    torch.testing.assert_close(score, torch.sigmoid(both @ weights.head.weight.T + weights.head.bias)[:, 0])


@pytest.mark.parametrize("length", [0, 1, 16, 33])
def test_scan_equals_the_step_loop_bit_for_bit(length: int) -> None:
    weights = gru(7, 5, 11)
    x = torch.randn(length, 7)
    state, steps = torch.zeros(3, 11), torch.empty(length)
    for t in range(length):
        others = torch.randn(3, 7)
        others[1] = x[t]
        state, scores = kernels.min_gru_step(state, others, weights)
        steps[t] = scores[1]
    assert torch.equal(kernels.min_gru_scan(x, weights), steps)


def test_scan_goes_on_from_a_state() -> None:
    weights = gru(4, 4, 4)
    x = torch.randn(12, 4)
    state = torch.zeros(1, 4)
    for t in range(5):
        state, _ = kernels.min_gru_step(state, x[t][None], weights)
    assert torch.equal(kernels.min_gru_scan(x[5:], weights, state[0]), kernels.min_gru_scan(x, weights)[5:])
