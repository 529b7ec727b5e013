"""Training: a planted direction is learnt, noise is not, splits are by problem, bad data is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes import train_probe
from desist.probes.artifact import probe_fingerprint
from desist.probes.evaluate import evaluate_probe
from desist.probes.features import HiddenSet, HiddenWriter, read_hidden
from desist.probes.fit_mlp import MlpSettings
from desist.probes.fit_rom import RomSettings
from desist.probes.labels import EVAL_FOLD, fold_of, label_boundaries
from desist.probes.metrics import auroc
from desist.probes.train import MIN_PROBLEMS
from tests.fakes.hidden import FINGERPRINTS, planted

QUICK = MlpSettings(hidden=(32, 16), members=2, max_rounds=20, patience=4)
Planted = tuple[list[Trace], HiddenSet]


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return planted(tmp_path_factory.mktemp("easy"), 600, strength=4.0)


@pytest.mark.parametrize("family", ["mlp", "logistic"])
def test_learns_a_planted_direction(easy: Planted, family: str) -> None:
    trained = train_probe(*easy, family=family, settings=QUICK if family == "mlp" else None)  # type: ignore[arg-type]
    report = trained.report
    assert report.auroc is not None
    assert report.auroc > 0.95
    assert report.direction_ok
    assert report.ece < 0.1
    assert report.saved_at_risk_05 is not None
    assert report.saved_at_risk_05 > 0.2
    assert trained.card.metrics["auroc"] == report.auroc
    assert trained.card.problems == {trace.problem_id for trace in easy[0]}
    assert trained.card.fingerprints == FINGERPRINTS
    assert report.n_problems == sum(fold_of(t.problem_id, 0) == EVAL_FOLD for t in easy[0])


def test_noise_is_worth_nothing_by_problem_though_a_split_by_boundary_flatters(tmp_path: Path) -> None:
    """All boundaries of a problem share label and fingerprint: only a leak can predict the label."""
    traces, hidden = planted(tmp_path, 400, strength=0.0, constant_problem=True, fingerprint=3.0)
    honest = train_probe(traces, hidden, settings=QUICK).report
    assert honest.auroc is not None
    assert abs(honest.auroc - 0.5) < 0.15

    table = label_boundaries(traces, "consistent")
    rows = hidden.gather(table.keys())
    train = np.random.default_rng(0).random(len(table)) < 0.8
    leaky = KNeighborsClassifier(3).fit(rows[train], table.label[train])
    flattered = auroc(table.label[~train], leaky.predict_proba(rows[~train])[:, 1])
    assert flattered is not None
    assert flattered > 0.95


def test_taps_not_named_are_not_read(easy: Planted) -> None:
    traces, hidden = easy
    with_signal = train_probe(traces, hidden, taps=(3,), settings=QUICK)
    without = train_probe(traces, hidden, taps=(1,), settings=QUICK)
    assert with_signal.card.taps == (3,)
    assert with_signal.card.width == hidden.dim
    assert (with_signal.report.auroc or 0) > 0.95
    assert abs((without.report.auroc or 0) - 0.5) < 0.15


def test_same_seed_same_weights_other_seed_other_weights(easy: Planted) -> None:
    traces, hidden = easy
    first, second, other = (
        probe_fingerprint(train_probe(traces, hidden, settings=QUICK, seed=seed).probe) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_the_evaluation_tenth_is_never_looked_at(easy: Planted, tmp_path: Path) -> None:
    """Spoiling the held-out problems' hidden states changes the report and not the probe."""
    traces, hidden = easy
    with HiddenWriter(tmp_path, hidden.taps, hidden.dim, "float32", fingerprints=FINGERPRINTS) as writer:
        for trace in traces:
            rows = hidden.of_trace(trace.trace_id)
            spoilt = -rows if fold_of(trace.problem_id, 0) == EVAL_FOLD else rows
            writer.add(trace.trace_id, range(len(rows)), spoilt)
    clean = train_probe(traces, hidden, settings=QUICK)
    other = train_probe(traces, read_hidden(tmp_path), settings=QUICK)
    assert probe_fingerprint(clean.probe) == probe_fingerprint(other.probe)
    assert (other.report.auroc or 0) < (clean.report.auroc or 0)


def test_order_of_traces_changes_nothing_of_the_split(easy: Planted) -> None:
    traces, hidden = easy
    forth, back = (train_probe(t, hidden, settings=QUICK).report for t in (traces, traces[::-1]))
    assert (forth.n_problems, forth.n_boundaries, forth.base_rate) == (
        back.n_problems,
        back.n_boundaries,
        back.base_rate,
    )


def test_R58_scores_are_probabilities_in_the_right_direction(easy: Planted) -> None:
    """Compared with an independent logistic regression on the same rows."""
    traces, hidden = easy
    probe = train_probe(traces, hidden, family="logistic").probe
    table = label_boundaries(traces, "consistent")
    rows = hidden.gather(table.keys())
    ours = probe.score(torch.from_numpy(rows)).numpy()  # type: ignore[union-attr]
    theirs = LogisticRegression(max_iter=2000).fit(rows, table.label).predict_proba(rows)[:, 1]
    assert ours[table.label].mean() > ours[~table.label].mean()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.95


def test_controls_stand_beside(easy: Planted) -> None:
    report = train_probe(*easy, settings=QUICK, controls=True).report
    assert set(report.controls) == {"position", "cue_count", "length", "bag_of_tokens", "same_answer"}
    assert all(value is not None and 0 <= value <= 1 for value in report.controls.values())
    assert (report.controls["position"] or 1) < (report.auroc or 0)
    plain = report.to_dict()
    assert plain["controls"]["position"] == report.controls["position"]
    assert report.flat()["controls.position"] == report.controls["position"]


def test_R63_evaluation_refuses_problems_the_probe_saw(easy: Planted, tmp_path: Path) -> None:
    traces, hidden = easy
    probe = train_probe(traces, hidden, settings=QUICK).probe
    with pytest.raises(ProbeError, match="were seen when the probe was made"):
        evaluate_probe(traces[:5], hidden, probe)
    fresh, fresh_hidden = planted(tmp_path, 100, strength=4.0, seed=7)
    assert (evaluate_probe(fresh, fresh_hidden, probe).auroc or 0) > 0.95


def relabel(traces: list[Trace], value: bool | None, boundaries: slice = slice(None)) -> list[Trace]:
    out = []
    for trace in traces:
        changed = list(trace.boundaries)
        changed[boundaries] = [dataclasses.replace(b, consistent=value) for b in changed[boundaries]]
        out.append(dataclasses.replace(trace, boundaries=tuple(changed)))
    return out


def test_unfit_data_is_refused_with_a_remedy(easy: Planted) -> None:
    traces, hidden = easy
    with pytest.raises(ProbeError, match=r"have no label 'consistent'.*Collect forced answers"):
        train_probe(relabel(traces, None, slice(0, 1)), hidden)
    with pytest.raises(ProbeError, match="same label"):
        train_probe(relabel(traces, True), hidden)
    with pytest.raises(ProbeError, match=f"{MIN_PROBLEMS - 1} problems are too few"):
        train_probe(traces[: MIN_PROBLEMS - 1], hidden)
    with pytest.raises(ProbeError, match="no boundaries"):
        train_probe([dataclasses.replace(t, boundaries=()) for t in traces], hidden)
    with pytest.raises(ProbeError, match="no hidden states of trace"):
        train_probe([*traces, dataclasses.replace(traces[0], trace_id="elsewhere")], hidden)
    with pytest.raises(ProbeError, match="this folder holds boundaries"):
        train_probe(traces, hidden, family="rom")
    with pytest.raises(ProbeError, match="do not fit family 'mlp'"):
        train_probe(traces, hidden, settings=RomSettings())
    with pytest.raises(ProbeError, match="tap 9"):
        train_probe(traces, hidden, taps=(9,))


def test_unlabelled_boundaries_can_be_left_out(easy: Planted) -> None:
    traces, hidden = easy
    trained = train_probe(relabel(traces, None, slice(0, 1)), hidden, settings=QUICK, unlabelled="skip")
    assert trained.card.n_boundaries == sum(len(t.boundaries) - 1 for t in traces)
    assert (trained.report.auroc or 0) > 0.95
