"""Boundaries scored by the kernels: at once, or later from copied rows, with the same numbers."""

from __future__ import annotations

import pytest
import torch

from desist.kernels.boundary_score import MAX_ROWS
from desist.kernels.choice import interpreting
from desist.probes import load_probe
from desist.proxy.engines.embedded.artefacts import Scorers, builtin_probes
from desist.proxy.engines.vllm.inside.scoring import Scoring
from desist.proxy.engines.vllm.inside.taps import StepTaps

N_LAYERS = 6


@pytest.fixture(scope="module")
def scorers() -> Scorers:
    return Scorers(probe=load_probe(builtin_probes()[0]))  # type: ignore[arg-type]


@pytest.mark.skipif(not interpreting(), reason="on a machine with a GPU the kernels do not run on the CPU")
def test_late_scores_are_those_of_the_step_whatever_computes_them(scorers: Scorers) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    torch.manual_seed(0)
    width = scorers.probe.card.hidden_size  # type: ignore[union-attr]
    last, *inner = (torch.randn(30, width) for _ in range(4))
    taps = StepTaps(last, inner, (2, 3, 4), N_LAYERS, torch.randperm(30))
    rows = [5, 0, 29, 7]
    plain, fused = Scoring(scorers, N_LAYERS), Scoring(scorers, N_LAYERS, impl="triton")
    assert (plain.in_kernels, fused.in_kernels) == (False, True)
    for scoring in (plain, fused):
        at_once = scoring.boundary_scores(taps, rows)
        copied = scoring.boundary_rows(taps, rows[:1]), scoring.boundary_rows(taps, rows[1:])
        assert scoring.scores_of_rows(*copied) == at_once
        assert at_once == pytest.approx(plain.boundary_scores(taps, rows), abs=1e-5)


@pytest.mark.parametrize("rows", [[3], [5, 0, 29, 3]])
def test_places_known_to_the_host_read_what_places_on_the_device_read(rows: list[int]) -> None:
    last, *inner = (torch.randn(30, 8) for _ in range(4))
    places = torch.randperm(30).to(torch.int32)
    there = StepTaps(last, inner, (2, 3, 4), N_LAYERS, places)
    here = StepTaps(last, inner, (2, 3, 4), N_LAYERS, places.numpy())
    assert torch.equal(here.read((3, N_LAYERS), rows), there.read((3, N_LAYERS), rows))
    assert torch.equal(here.at, there.at)


@pytest.mark.skipif(not interpreting(), reason="on a machine with a GPU the kernels do not run on the CPU")
def test_more_rows_than_one_launch_takes_are_scored_in_several(
    scorers: Scorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    monkeypatch.setattr("desist.proxy.engines.vllm.inside.scoring.MAX_ROWS", 3)
    assert MAX_ROWS > 3
    read = torch.randn(7, scorers.probe.card.width)  # type: ignore[union-attr]
    whole = Scoring(scorers, N_LAYERS).scores_of_rows(read)
    assert Scoring(scorers, N_LAYERS, impl="triton").scores_of_rows(read) == pytest.approx(whole, abs=1e-5)
