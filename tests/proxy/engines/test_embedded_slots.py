"""The slot cache against transformers' own forward."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from desist.data.errors import EngineError
from desist.proxy.engines.embedded.slots import SlotBatch
from tests.fakes.tiny_model import N_LAYERS, WIDTH, tiny_model

TAPS = (0, 2, -1)


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return tiny_model().network


def plain(network: torch.nn.Module, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [V] and hidden states at the taps [D] after the last id, by one forward of transformers."""
    with torch.inference_mode():
        output = network(torch.tensor([ids]), output_hidden_states=True)
    return output.logits[0, -1], [output.hidden_states[tap][0, -1] for tap in TAPS]


def check(network: torch.nn.Module, batch: SlotBatch, read: list[list[int]], tokens: list[int]) -> None:
    """Step once and compare every row with a plain forward over all it has read."""
    output = batch.step(tokens)
    for row, token in enumerate(tokens):
        read[row].append(token)
        logits, hidden = plain(network, read[row])
        torch.testing.assert_close(output.logits[row], logits, atol=1e-4, rtol=1e-5)
        for tap, expected in zip(output.hidden, hidden, strict=True):
            torch.testing.assert_close(tap[row], expected, atol=1e-4, rtol=1e-5)


def test_ragged_rows_join_and_leave(network: torch.nn.Module) -> None:
    rng = random.Random(0)
    size = network.config.vocab_size
    batch = SlotBatch(network, max_rows=5, taps=TAPS)
    read: list[list[int]] = []
    for _ in range(60):
        if len(read) < 5 and (not read or rng.random() < 0.4):
            prefix = [rng.randrange(size) for _ in range(rng.choice((0, 1, 3, 20, 90)))]
            assert batch.join(prefix) == len(read)
            read.append(prefix)
        check(network, batch, read, [rng.randrange(size) for _ in read])
        if rng.random() < 0.25:
            gone = rng.randrange(len(read))
            moved = batch.leave(gone)
            last = read.pop()
            assert moved == (None if gone == len(read) else len(read))
            if gone < len(read):
                read[gone] = last
        assert batch.n_rows == len(read)
        assert [batch.length(row) for row in range(len(read))] == [len(ids) for ids in read]


def test_cache_grows_beyond_its_first_length(network: torch.nn.Module) -> None:
    batch = SlotBatch(network, max_rows=2, taps=TAPS, length=64)
    read = [[5] * 60, [7, 8]]
    for prefix in read:
        batch.join(prefix)
    for step in range(10):
        check(network, batch, read, [step + 9, step + 30])


def test_saved_row_goes_on_as_the_row_itself(network: torch.nn.Module) -> None:
    batch = SlotBatch(network, max_rows=3, taps=TAPS)
    batch.join([3, 4, 5])
    batch.step([6])
    snapshot = batch.save(0)
    batch.step([7])
    row = batch.load(snapshot)
    assert (row, batch.length(row)) == (1, 4)
    output = batch.step([8, 7])
    alone = SlotBatch(network, max_rows=3, taps=TAPS)
    alone.join([3, 4, 5])
    alone.step([6])
    assert torch.equal(alone.step([7]).logits[0], output.logits[1])


def test_rows_do_not_depend_on_their_neighbours(network: torch.nn.Module) -> None:
    """Bitwise, with 1, 3 and 16 active rows in a batch of 16, at any place."""

    def run(before: int, after: int) -> torch.Tensor:
        batch = SlotBatch(network, max_rows=16, taps=(2,), width=16)
        rows = [[9 + n] * (5 + 7 * n) for n in range(before)]
        rows += [[40, 41, 42, 43]]
        rows += [[80 + n] * (3 + 5 * n) for n in range(after)]
        for prefix in rows:
            batch.join(prefix)
        seen = []
        for step in range(30):
            output = batch.step([44 + step if n == before else 5 + n for n in range(len(rows))])
            seen.append(torch.cat([output.logits[before], output.hidden[0][before]]))
        return torch.stack(seen)

    alone = run(0, 0)
    assert torch.equal(alone, run(1, 1))
    assert torch.equal(alone, run(7, 8))
    assert torch.equal(alone, run(15, 0))


def test_refusals(network: torch.nn.Module) -> None:
    with pytest.raises(EngineError, match="tap 9 does not exist"):
        SlotBatch(network, max_rows=1, taps=(9,))
    batch = SlotBatch(network, max_rows=1)
    batch.join([1, 2])
    with pytest.raises(EngineError, match="no free slot"):
        batch.join([1])
    with pytest.raises(EngineError, match="2 tokens given for 1 rows"):
        batch.step([1, 2])
    batch.leave(0)
    with pytest.raises(EngineError, match="do not fit into the model's context of 512"):
        batch.join([1] * 600)
    config = SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(EngineError, match="full attention only"):
        SlotBatch(SimpleNamespace(config=config), max_rows=1)


def test_tap_indices_count_from_both_ends(network: torch.nn.Module) -> None:
    batch = SlotBatch(network, max_rows=1, taps=(0, -1, N_LAYERS))
    assert batch.taps == (0, N_LAYERS, N_LAYERS)
    batch.join([1])
    output = batch.step([2])
    assert [tuple(tap.shape) for tap in output.hidden] == [(1, WIDTH)] * 3
    assert torch.equal(output.hidden[1], output.hidden[2])
