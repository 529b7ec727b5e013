"""`calibrate`, `report` and `certificate` as a user runs them: JSON, files, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from desist.calibration import load_certificate
from desist.data import write_traces
from desist.kernels import Layer
from desist.probes import save_probe
from desist.probes.artifact import probe_fingerprint
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from tests.cli.test_cli import as_json, desist
from tests.fakes.traces import make_traces

KEYS = {
    "certified", "guarantee", "threshold", "n", "needed_n", "method", "loss", "holdout_risk", "holdout_ci",
    "saved_fraction", "report",
}  # fmt: skip


def renamed(name: str, seed: int = 3, n: int = 400) -> list[Any]:
    """Traces whose only score has another name than a probe's."""
    return [
        replace(t, boundaries=tuple(replace(b, scores={name: b.scores["probe"]}) for b in t.boundaries))
        for t in make_traces(n, seed)
    ]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scored") / "traces.jsonl.gz"
    write_traces(path, renamed("entropy"))
    return path


@pytest.fixture(scope="module")
def made(scored: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a calibration, and what it printed."""
    out = scored.parent / "made-0.2"  # a dot in a folder's name is no suffix
    done = desist(
        "calibrate", scored, "--alpha", "0.2", "--delta", "0.05", "--out", out, "--json", "--quiet",
        "--floor", "answer resampled=0.15", "--tokens-per-second", "40", "--audit-share", "0.02",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, as_json(done)


def test_calibrate_certifies_any_score_and_reports(made: tuple[Path, dict[str, Any]]) -> None:
    out, found = made
    assert found.keys() >= KEYS
    assert (found["certified"], found["guarantee"], found["method"]) == (True, "pac", "ltt")
    assert (found["scorer"], found["n"], found["needed_n"]) == ("entropy", 400, 14)
    low, high = found["holdout_ci"]
    assert 0 <= low <= found["holdout_risk"] <= high <= 1
    assert 0 < found["saved_fraction"] < 1
    certificate = load_certificate(out / "certificate.json")
    assert (certificate.lam, certificate.expires > certificate.created) == (found["threshold"], True)
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    for words in ("answer resampled", "fixed budget of", "Net of audits", "desist calibrate", "98"):
        assert words in page
    assert "Of 1,000 requests" in text


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_every_format_gives_the_same_certificate(
    made: tuple[Path, dict[str, Any]], tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"traces{suffix}"
    write_traces(file, renamed("entropy"))
    done = desist("calibrate", file, "--alpha", "0.2", "--out", tmp_path / "o", "--json", "--quiet")
    assert {key: as_json(done)[key] for key in KEYS - {"report"}} == {
        key: made[1][key] for key in KEYS - {"report"}
    }


@pytest.mark.parametrize(("alpha", "certified"), [("0.02", True), ("0.001", False)])
def test_R58_a_reversed_score_is_told_loudly_with_what_fired(
    scored: Path, tmp_path: Path, alpha: str, certified: bool
) -> None:
    """1 - score: told on stderr, even if quiet, in the JSON and in both reports; and how few traces fired.

    The promise on the loss holds for such a score too: a certificate that saves next to nothing.
    """
    turned = tmp_path / "turned.jsonl"
    write_traces(
        turned,
        [
            replace(
                t, boundaries=tuple(replace(b, scores={"e": 1 - b.scores["probe"]}) for b in t.boundaries)
            )
            for t in make_traces(400, 3)
        ],
    )
    ran = {
        path: desist("calibrate", path, "--alpha", alpha, "--out", tmp_path / path.stem, "--json", "--quiet")
        for path in (turned, scored)
    }
    wrong, right = as_json(ran[turned]), as_json(ran[scored])
    assert wrong["auroc"] + right["auroc"] == pytest.approx(1)
    assert wrong["auroc"] < 0.5 < right["auroc"]
    for found in (wrong, right):
        assert found["never_fired"] == pytest.approx(1 - found["n_fired"] / 400)
    assert (wrong["certified"], ran[turned].returncode) == (certified, 0 if certified else 2)
    assert (0 < wrong["n_fired"] < 20 < right["n_fired"]) if certified else (wrong["n_fired"] == 0)
    assert right["warnings"] == []
    assert "WRONG WAY" not in ran[scored].stderr
    assert "POINTS THE WRONG WAY" in wrong["warnings"][0]
    assert "POINTS THE WRONG WAY" in ran[turned].stderr
    for ending in ("html", "md"):
        page = (tmp_path / "turned" / f"report.{ending}").read_text()
        assert "POINTS THE WRONG WAY" in page
        assert f"{wrong['n_fired']} of 400 traces stopped" in page
        assert "WRONG WAY" not in (tmp_path / "traces.jsonl" / f"report.{ending}").read_text()


def test_R58_words_tell_the_direction_and_what_never_fired(scored: Path, tmp_path: Path) -> None:
    done = desist("calibrate", scored, "--alpha", "0.2", "--out", tmp_path, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "Direction of the score: AUROC 0.9" in done.stdout
    assert "of 400 traces stopped" in done.stdout
    assert "% never reached a stop" in done.stdout


def test_several_scores_need_a_name(tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    traces = [
        replace(t, boundaries=tuple(replace(b, scores={**b.scores, "other": 0.5}) for b in t.boundaries))
        for t in make_traces(60, 3)
    ]
    write_traces(file, traces)
    done = desist("calibrate", file, "--alpha", "0.2", "--out", tmp_path, "--json", "--quiet")
    assert done.returncode == 1
    assert "2 scores: other, probe" in as_json(done)["error"]["message"]
    done = desist(
        "calibrate", file, "--alpha", "0.2", "--scorer", "probe", "--out", tmp_path, "--json", "--quiet"
    )
    assert as_json(done)["scorer"] == "probe"


@pytest.mark.parametrize(("arguments", "reason", "needed"), [
    (("--alpha", "0.05"), "too_few", 59),
    (("--alpha", "0.2", "--method", "cue-level"), "no_guarantee", None),
    (("--alpha", "0.2", "--floor", "resampled=0.2"), "floor", None),
])  # fmt: skip
def test_R61_R65_what_cannot_be_certified_says_so_with_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], reason: str, needed: int | None
) -> None:
    few = tmp_path / "few.jsonl"
    write_traces(few, make_traces(58, seed=3))
    done = desist("calibrate", few, *arguments, "--out", tmp_path / "out", "--json", "--quiet")
    assert done.returncode == 2, done.stderr
    found = as_json(done)
    assert found.keys() >= KEYS
    assert (found["certified"], found["guarantee"], found["holdout_risk"]) == (False, "none", None)
    assert (found["reason"], found["needed_n"]) == (reason, needed)
    assert not (tmp_path / "out" / "certificate.json").exists()
    assert "No request is stopped" in Path(found["report"]).read_text()


def test_report_again_from_traces_and_from_figures_alone(
    made: tuple[Path, dict[str, Any]], scored: Path, tmp_path: Path
) -> None:
    out, _ = made
    again = tmp_path / "again.md"
    done = desist("report", scored, "--certificate", out / "certificate.json", "--out", again, "--json")
    assert done.returncode == 0, done.stderr
    assert "Of 1,000 requests" in again.read_text()
    done = desist("report", "--figures", out / "report.json", "--out", tmp_path / "all", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert len(as_json(done)["files"]) == 3
    assert (tmp_path / "all" / "report.html").read_text() == (out / "report.html").read_text()
    assert desist("report", "--out", tmp_path / "x.html").returncode == 1


def test_show_verify_and_diff(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = made[0] / "certificate.json"
    shown = as_json(desist("certificate", "show", path, "--json"))
    assert (shown["lam"], shown["fingerprints"]["patience"]) == (made[1]["threshold"], "1")
    done = desist("certificate", "verify", path, "--expect", "patience=1", "--json")
    assert (done.returncode, as_json(done)["valid"]) == (0, True)
    done = desist("certificate", "verify", path, "--expect", "patience=2", "--expect", "model=m", "--json")
    assert done.returncode == 2
    assert as_json(done)["differing"] == {
        "model": {"certified": None, "running": "m"}, "patience": {"certified": "1", "running": "2"},
    }  # fmt: skip
    old = load_certificate(path).model_copy(update={"expires": "2020-01-01", "risk": 0.5})
    other = old.save(tmp_path / "old.json")
    done = desist("certificate", "verify", other, "--json")
    assert (done.returncode, as_json(done)["expired"]) == (2, True)
    changed = as_json(desist("certificate", "diff", path, other, "--json"))
    assert set(changed["changed"]) == {"expires", "risk"}
    assert (changed["problems_shared"], changed["made_for_the_same"]) == (400, True)
    (tmp_path / "bad.json").write_text(path.read_text().replace('"n": 400', '"n": 401'))
    done = desist("certificate", "show", tmp_path / "bad.json", "--json")
    assert done.returncode == 1
    assert "changed after it was made" in as_json(done)["error"]["message"]


def test_activate_takes_a_probe_and_its_certificate_only_as_a_pair(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    probe = LynxProbe(
        ProbeCard("logistic", (1,), 4, "consistent"), [Layer(torch.zeros(1, 4), torch.zeros(1))]
    )
    folder, active = save_probe(probe, tmp_path / "probe"), tmp_path / "active"
    own = load_certificate(made[0] / "certificate.json")
    fitting = own.model_copy(update={"fingerprints": {"entropy": probe_fingerprint(probe)}})
    first = fitting.save(tmp_path / "first.json")
    done = desist("certificate", "activate", first, "--activation", active, "--probe", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert as_json(done)["percent"] == 100
    other = made[0] / "certificate.json"
    done = desist("certificate", "activate", other, "--activation", active, "--probe", folder, "--json")
    assert done.returncode == 1
    assert "entropy: certified None" in as_json(done)["error"]["message"]
    done = desist("certificate", "activate", other, "--activation", active, "--percent", "10", "--json")
    assert as_json(done)["before"] is not None
    done = desist("certificate", "rollback", "--activation", active, "--json")
    assert json.loads((active / "active.json").read_text())["number"] == as_json(done)["number"] == 3
    assert desist("certificate", "rollback", "--activation", active).returncode == 1


def test_several_alphas_make_a_sheet_with_both_deltas(scored: Path, tmp_path: Path) -> None:
    done = desist(
        "calibrate", scored, "--alpha", "0.2", "--alpha", "0.05", "--alpha", "0.002", "--out", tmp_path,
        "--risk", "harm=0.2", "--json", "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = as_json(done)
    assert (found["alpha"], found["risks"]) == ("0.2", [{"loss": "harm", "alpha": "0.2"}])
    rows = {(row["alpha"], row["holds"]): row for row in found["operating_points"]}
    assert len(rows) == 6
    assert found["delta_together"] == "1/60"
    assert rows["0.2", "alone"]["threshold"] == found["threshold"] <= rows["0.2", "together"]["threshold"]
    assert rows["0.002", "alone"]["certificate"] is None
    together = load_certificate(rows["0.05", "together"]["certificate"])
    assert (str(together.delta), together.lam) == ("1/60", rows["0.05", "together"]["threshold"])
    for ending in ("html", "md"):
        page = (tmp_path / f"report.{ending}").read_text()
        for words in ("delta = 0.05", "delta/3 = 1/60", "Is the score a probability?", "Kolmogorov"):
            assert words in page
    points = json.loads((tmp_path / "report.json").read_text())[0]["points"]
    assert [point["alpha"] for point in points] == ["0.002", "0.05", "0.2"]


def test_weighted_to_a_later_traffic(tmp_path: Path) -> None:
    """The later traffic has more long prompts; a traffic of another kind is an error, one file names it."""
    traces = [
        replace(t, problem=f"{k} " + "long " * (60 if k % 5 == 0 else 1))
        for k, t in enumerate(make_traces(400, 3))
    ]
    later = [replace(t, problem=f"later {t.problem}") for k, t in enumerate(traces) if k % 5 == 0 or k % 2]
    for name, rows in (("now", traces), ("later", later), ("few", later[:20])):
        write_traces(tmp_path / f"{name}.jsonl", rows)
    base = (
        "calibrate",
        tmp_path / "now.jsonl",
        "--alpha",
        "0.2",
        "--method",
        "weighted",
        "--json",
        "--quiet",
    )
    done = desist(*base, "--shift", tmp_path / "later.jsonl", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = as_json(done)
    assert (found["guarantee"], found["weights"]) == ("mean", "weight")
    assert 100 < found["n_effective"] < 400
    assert len(found["fingerprints"]["traffic"]) == 64
    assert "are worth" in (tmp_path / "out" / "report.html").read_text()
    again = desist(
        "report", tmp_path / "now.jsonl", "--certificate", tmp_path / "out" / "certificate.json", "--shift",
        tmp_path / "later.jsonl", "--alpha", "0.3", "--out", tmp_path / "again.json", "--json", "--quiet",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert [point["alpha"] for point in json.loads((tmp_path / "again.json").read_text())[0]["points"]] == [
        "0.3"
    ]
    for wrong, words in ((("--shift", tmp_path / "few.jsonl"), "50 of each"), ((), "needs --shift")):
        done = desist(*base, *wrong, "--out", tmp_path / "no")
        assert done.returncode == 1
        assert words in as_json(done)["error"]["message"]
