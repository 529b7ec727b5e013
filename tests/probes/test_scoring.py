"""Scores on saved traces are the live scores, and nothing else of the trace changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from desist.data.errors import ProbeError
from desist.probes import load_probe, save_probe, score_traces, train_probe
from desist.probes.fit_mlp import MlpSettings
from desist.probes.lynx import LynxProbe
from tests.fakes.hidden import planted


def test_replayed_scores_are_the_live_ones(tmp_path: Path) -> None:
    traces, hidden = planted(tmp_path / "hidden", 200, strength=3.0)
    settings = MlpSettings(hidden=(16,), members=1, max_rounds=4)
    trained = train_probe(traces, hidden, taps=(3,), settings=settings)
    probe = load_probe(save_probe(trained.probe, tmp_path / "probe"))
    assert isinstance(probe, LynxProbe)
    scored = list(score_traces(traces, hidden, probe, "mine"))
    for before, after in zip(traces, scored, strict=True):
        rows = torch.from_numpy(hidden.of_trace(before.trace_id)[:, hidden.columns((3,))])
        live = [probe.score(row[None]).item() for row in rows]
        assert [boundary.scores["mine"] for boundary in after.boundaries] == live
        bare = tuple(dataclasses.replace(b, scores={}) for b in after.boundaries)
        assert dataclasses.replace(after, boundaries=bare) == before
    # scoring again under another name keeps the first
    twice = next(score_traces(scored, hidden, probe, "again"))
    assert set(twice.boundaries[0].scores) == {"mine", "again"}
    empty = dataclasses.replace(traces[0], trace_id="unknown", boundaries=())
    assert list(score_traces([empty], hidden, probe)) == [empty]
    with pytest.raises(ProbeError, match="no hidden states of trace"):
        list(score_traces([dataclasses.replace(traces[0], trace_id="unknown")], hidden, probe))
