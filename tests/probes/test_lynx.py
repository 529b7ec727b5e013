"""The cue probe: folding, merging, widths, precision, device moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from desist.data.errors import ProbeError
from desist.kernels import Layer
from desist.probes.base import Probe, ProbeCard
from desist.probes.fit_mlp import fit_logit_scale, standardise
from desist.probes.lynx import LynxProbe, merge_members, network
from desist.probes.rows import fold_standardisation


def card(width: int, dtype: str = "float32") -> ProbeCard:
    return ProbeCard("mlp", (2,), width, "consistent", hidden_dtype=dtype)  # type: ignore[arg-type]


def linears(net: torch.nn.Sequential) -> list[Layer]:
    return [Layer(m.weight, m.bias) for m in net if isinstance(m, torch.nn.Linear)]


@pytest.mark.parametrize("hidden", [(), (12,), (12, 5)])
def test_folded_and_merged_equals_standardised_and_averaged(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    rows = (50 + 9 * np.random.default_rng(0).normal(size=(40, 6))).astype(np.float32)
    rows[:, 4] = 3.0  # never varies: must be ignored, not divided by
    raw = torch.from_numpy(rows.copy())
    scaling = standardise(rows, np.ones(40, dtype=bool))
    nets = [network(6, hidden, 0.0).eval() for _ in range(3)]
    with torch.no_grad():
        mean_logit = torch.stack([net(torch.from_numpy(rows)).squeeze(-1) for net in nets]).mean(0)
    layers = merge_members([linears(net) for net in nets])
    probe = LynxProbe(card(6), [fold_standardisation(layers[0], *scaling), *layers[1:]])
    torch.testing.assert_close(probe.score(raw), mean_logit.sigmoid(), rtol=1e-4, atol=1e-5)
    moved = raw.clone()
    moved[:, 4] = 99.0
    torch.testing.assert_close(probe.score(moved), probe.score(raw))


def test_live_rows_are_rounded_like_the_stored_ones() -> None:
    torch.manual_seed(0)
    half, full = (
        LynxProbe(card(8, dtype), linears(network(8, (4,), 0.0))) for dtype in ("float16", "float32")
    )
    rows = torch.randn(20, 8)
    stored = rows.to(torch.float16).to(torch.float32)
    assert torch.equal(half.score(rows), half.score(stored))
    assert not torch.equal(full.score(rows), full.score(stored))


def test_shuffled_rows_give_shuffled_scores() -> None:
    torch.manual_seed(0)
    probe = LynxProbe(card(8), linears(network(8, (4,), 0.0)))
    rows, order = torch.randn(37, 8), torch.randperm(37)
    assert torch.equal(probe.score(rows)[order], probe.score(rows[order]))
    assert isinstance(probe, Probe)


def test_wrong_width_and_wrong_layers_are_refused() -> None:
    probe = LynxProbe(card(8), linears(network(8, (4,), 0.0)))
    with pytest.raises(ProbeError, match=r"\[B, 8\]"):
        probe.score(torch.randn(3, 7))
    with pytest.raises(ProbeError, match="different probes"):
        LynxProbe(card(9), probe.layers)
    broken = [Layer(layer.weight.clone(), layer.bias.clone()) for layer in probe.layers]
    broken[0].weight[0, 0] = torch.nan
    with pytest.raises(ProbeError, match="NaN"):
        LynxProbe(card(8), broken)


def test_a_probe_owns_its_weights() -> None:
    layers = linears(network(8, (4,), 0.0))
    probe = LynxProbe(card(8), layers)
    rows = torch.randn(3, 8)
    before = probe.score(rows)
    with torch.no_grad():
        layers[0].weight.zero_()
    assert torch.equal(probe.score(rows), before)
    assert torch.equal(probe.to("cpu").score(rows), before)


def test_logit_scale_never_turns_the_direction() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(size=500)
    label = rng.random(500) < 1 / (1 + np.exp(-(3 * logit - 1)))
    slope, offset = fit_logit_scale(logit, label)
    assert slope == pytest.approx(3, rel=0.25)
    assert offset == pytest.approx(-1, abs=0.4)
    assert fit_logit_scale(-logit, label)[0] > 0
