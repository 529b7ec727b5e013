"""The built-in reasoner with its probes and certificates: what `make serve` and `desist demo` rest on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from desist.calibration import CannotCertify, load_certificate
from desist.data import answers_equal, read_traces
from desist.data.errors import CalibrationError
from desist.data.splits import split_of
from desist.proxy.studies.builtin import (
    Builtin,
    builtin_problems,
    calibration_traces,
    load_builtin,
    refuse_seen,
)
from desist.proxy.studies.demo import certify_builtin, figures, run_demo
from desist.proxy.studies.parity import study_parity
from desist.proxy.studies.reasoner import study_reasoner

ROOT = Path(__file__).resolve().parents[3]
CERTIFICATES = sorted(
    path for path in (ROOT / "calibration" / "builtin").glob("*.json") if "estimates" not in path.name
)


@pytest.fixture(scope="module")
def builtin() -> Builtin:
    return load_builtin()


def test_problems_are_distinct_seeded_and_of_their_split() -> None:
    drawn = builtin_problems("test", 5, 40)
    assert drawn == builtin_problems("test", 5, 40)
    assert len({problem.problem_id for problem in drawn}) == 40
    assert {split_of(problem.problem_id) for problem in drawn} == {"test"}
    assert not {p.problem_id for p in builtin_problems("train", 5, 40)} & {p.problem_id for p in drawn}


def test_seen_problems_are_refused() -> None:
    drawn = builtin_problems("test", 5, 3)
    refuse_seen(drawn, frozenset({"other"}))
    with pytest.raises(CalibrationError, match=drawn[1].problem_id):
        refuse_seen(drawn, frozenset({drawn[1].problem_id}))


def test_training_calibration_and_test_problems_are_disjoint(builtin: Builtin) -> None:
    trained = builtin.required_probe().card.problems
    calibrated = {trace.problem_id for trace in calibration_traces()}
    assert len(trained) >= 3000
    assert len(calibrated) >= 1000
    assert {split_of(identity) for identity in trained} == {"train"}
    assert {split_of(identity) for identity in calibrated} == {"calibration"}


def test_there_is_a_certificate_for_each_operating_point() -> None:
    assert {"consistency-0.05", "harm-0.02"} <= {path.stem for path in CERTIFICATES}


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: path.stem)
def test_a_builtin_certificate_is_made_again_from_its_traces(path: Path, builtin: Builtin) -> None:
    stored = load_certificate(path)
    again, _ = certify_builtin(builtin, alpha=str(stored.alpha), delta="0.05", loss=stored.loss)
    assert not isinstance(again, CannotCertify)
    assert (again.lam, again.n_bad, again.fingerprints) == (stored.lam, stored.n_bad, stored.fingerprints)


def test_every_figure_of_a_demo_can_be_computed_again(builtin: Builtin, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    paired = run_demo(builtin, seed=9, n=24, loss="consistency", alpha="0.1", out=out, rivals=False)
    assert not isinstance(paired, CannotCertify)
    found = figures(paired, seed=9)
    traces = list(read_traces(out))
    rows = [trace.provenance["stopped"] for trace in traces]
    assert found["n"] == len(rows) == 24
    right = sum(answers_equal(row["answer"], t.gold) for row, t in zip(rows, traces, strict=True))
    assert found["accuracy_stopped"] == right / 24
    assert found["accuracy_full"] == sum(row["full_correct"] for row in rows) / 24
    assert found["inconsistent"] == sum(not row["consistent"] for row in rows)
    assert found["consistency_risk"] == found["inconsistent"] / 24
    assert found["lost"] - found["gained"] == sum(row["full_correct"] for row in rows) - right
    net = sum(row["n_tokens"] for row in rows) / sum(row["full_n_tokens"] for row in rows)
    assert found["saved_fraction"] == pytest.approx(1 - net)
    assert found["oracle_first_fraction"] >= found["oracle_settled_fraction"]
    assert found["replay_differs"] == found["prefix_differs"] == 0
    assert all(row["stop_index"] == row["replay_stop_index"] for row in rows)
    for row in rows:
        parts = row["reasoning_tokens"] + row["handoff_tokens"] + row["answer_tokens"]
        assert parts == row["n_tokens"]


def test_a_demo_that_cannot_be_certified_exits_with_2() -> None:
    code = "from desist.cli import main; main()"
    flags = ("demo", "--n", "8", "--alpha", "0.00001", "--json", "--quiet")
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)
    assert found["certified"] is False
    assert found["needed_n"] > found["n"]


def test_live_equals_replay_and_company_changes_nothing(builtin: Builtin) -> None:
    """`desist study parity` on few problems: probe and streaming head, sampled and greedy, over HTTP."""
    report = study_parity(builtin, seed=4, n=16)
    assert len(report.rows) == 4
    assert sum(row.n_stopped for row in report.rows) > 0
    assert report.exact, report


def test_the_study_measures_what_it_says(builtin: Builtin) -> None:
    report = study_reasoner(builtin, seed=3, n=40)
    found = report.as_json()
    assert found["accuracy_full"] > found["accuracy_no_thinking"]
    assert 0 <= found["headroom"] <= 1
    assert found["truncated"] <= 0.1
    assert set(found["misses"]) == set(report.misses)
