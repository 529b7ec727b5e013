"""The streaming head: learns what only a memory can tell, is causal, and steps as it scans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes import score_traces, train_probe
from desist.probes.base import ProbeCard, StreamingProbe
from desist.probes.features import HiddenSet
from desist.probes.fit_rom import RomSettings
from desist.probes.rom import MinGRUNetwork, RomProbe
from desist.probes.token_batches import group_weights, token_labels
from desist.probes.train import TrainedProbe
from tests.fakes.hidden import token_planted

QUICK = RomSettings(
    projection=16, states=16, max_rounds=12, patience=6, batch_tokens=1000, learning_rate=1e-2
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trace], HiddenSet, TrainedProbe]:
    traces, hidden = token_planted(tmp_path_factory.mktemp("tokens"), 300)
    return traces, hidden, train_probe(traces, hidden, family="rom", settings=QUICK)


def small(seed: int = 0) -> RomProbe:
    torch.manual_seed(seed)
    return RomProbe(ProbeCard("rom", (2,), 6, "consistent"), MinGRUNetwork(6, 8, 8, 0.0).weights())


def test_learns_that_a_token_was_seen(learnt: tuple[list[Trace], HiddenSet, TrainedProbe]) -> None:
    _, _, trained = learnt
    assert trained.report.auroc is not None
    assert trained.report.auroc > 0.95
    assert trained.report.direction_ok
    assert trained.card.family == "rom"


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 40), cut=st.integers(0, 40), seed=st.integers(0, 5))
def test_later_tokens_never_change_earlier_scores(length: int, cut: int, seed: int) -> None:
    probe = small(seed)
    hidden = torch.randn(length, 6)
    cut = min(cut, length)
    other = hidden.clone()
    other[cut:] = 100 * torch.randn(length - cut, 6)
    assert torch.equal(probe.scan(hidden)[:cut], probe.scan(other)[:cut])
    assert torch.equal(probe.scan(hidden[:cut]), probe.scan(hidden)[:cut])


def test_steps_of_a_batch_equal_the_scan_and_the_network_in_training() -> None:
    torch.manual_seed(0)
    net = MinGRUNetwork(6, 8, 8, 0.0).eval()
    probe = RomProbe(ProbeCard("rom", (2,), 6, "consistent", hidden_dtype="float32"), net.weights())
    hidden = torch.randn(3, 25, 6)
    state, steps = probe.initial_state(3), []
    for t in range(25):
        state, score = probe.step(state, hidden[:, t])
        steps.append(score)
    together = torch.stack(steps, 1)
    assert torch.equal(together, torch.stack([probe.scan(one) for one in hidden]))
    with torch.no_grad():
        torch.testing.assert_close(together, net(hidden).sigmoid())
    assert state.shape == (3, probe.state_size)
    assert isinstance(probe, StreamingProbe)


def test_scores_in_traces_are_those_of_the_stream(
    learnt: tuple[list[Trace], HiddenSet, TrainedProbe],
) -> None:
    traces, hidden, trained = learnt
    probe = trained.probe
    assert isinstance(probe, RomProbe)
    for trace in score_traces(traces[:5], hidden, probe, "rom"):
        state = probe.initial_state(1)
        rows = torch.from_numpy(hidden.of_trace(trace.trace_id))
        live = {}
        for t, row in enumerate(rows):
            state, score = probe.step(state, row[None])
            live[t + 1] = score.item()
        for boundary in trace.boundaries:
            assert boundary.scores["rom"] == live[boundary.position]


def test_token_labels() -> None:
    position, label = np.array([2, 4, 6]), np.array([False, True, False])
    first = token_labels(position, label, 8)
    assert first.label.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert first.where.tolist() == [1, 3, 5]
    state = token_labels(position, label, 8, "state")
    assert state.label.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert token_labels(position, label & False, 8).label.sum() == 0
    assert token_labels(np.array([0, 2]), np.array([True, False]), 3).where.tolist() == [1]


def test_right_first_and_wrong_then_right_weigh_the_same() -> None:
    weights = group_weights([True] * 6 + [False] * 2 + [None] * 3)
    assert weights[:6].sum() == pytest.approx(weights[6:8].sum())
    assert weights[:8].sum() == pytest.approx(8)
    assert (weights[8:] == 1).all()
    assert (group_weights([True, None]) == 1).all()


def test_traces_and_tokens_of_different_runs_are_refused(
    learnt: tuple[list[Trace], HiddenSet, TrainedProbe], tmp_path: Path
) -> None:
    import dataclasses

    traces, hidden, trained = learnt
    longer = dataclasses.replace(traces[0], n_reasoning_tokens=traces[0].n_reasoning_tokens + 1)
    with pytest.raises(ProbeError, match="different runs"):
        list(score_traces([longer], hidden, trained.probe))
    with pytest.raises(ProbeError, match="different runs"):
        train_probe([longer, *traces[1:]], hidden, family="rom", settings=QUICK)
    with pytest.raises(ProbeError, match="this folder holds tokens"):
        train_probe(traces, hidden, family="mlp")
