"""`calibrate --group-by` as a user runs it, and what is made of its certificates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from desist.calibration import load_certificate
from desist.calibration.exact import exact
from desist.calibration.pac import smallest_n
from desist.data import write_traces
from desist.data.schema import Trace
from tests.cli.test_cli import as_json, desist
from tests.fakes.traces import make_traces


def mixed(n: int, seed: int, prefix: str = "") -> list[Trace]:
    """Traces of three datasets (one small) made by two models, whose fingerprints differ."""
    return [
        replace(
            t,
            dataset="odd" if k % 25 == 0 else ("easy", "hard")[k % 2],
            model=f"m{k % 3 // 2}",
            problem=("Wie viele sind es? " if k % 4 else "How many are there? ") + prefix + str(k),
            provenance={"fingerprints": {"model": f"print{k % 3 // 2}"}},
        )
        for k, t in enumerate(make_traces(n, seed))
    ]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped") / "traces.jsonl"
    write_traces(path, [replace(t, provenance={}) for t in mixed(600, 3)])
    return path


@pytest.fixture(scope="module")
def made(scored: Path) -> tuple[Path, dict[str, Any]]:
    out = scored.parent / "made"
    done = desist(
        "calibrate", scored, "--alpha", "0.1", "--group-by", "dataset", "--out", out, "--json", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    return out, as_json(done)


def test_each_group_is_listed_with_its_certificate_or_what_it_lacks(
    made: tuple[Path, dict[str, Any]],
) -> None:
    found = made[1]
    rows = {row["group"]: row for row in found["groups"]}
    assert set(rows) == {"easy", "hard", "odd"}
    for name in ("easy", "hard"):
        row, certificate = rows[name], load_certificate(rows[name]["certificate"])
        assert row["certified"]
        assert (row["threshold"], row["n"]) == (certificate.lam, certificate.n) == (certificate.lam, 288)
        assert row["holdout_ci"][0] <= row["holdout_risk"] <= row["holdout_ci"][1]
        assert (certificate.group, str(certificate.delta)) == (name, "1/40")
        assert Path(row["certificate"]).with_suffix(".estimates.json").exists()
    odd = rows["odd"]
    needed = smallest_n(exact("0.1"), exact("0.05") / 3)
    assert (odd["certified"], odd["threshold"], odd["certificate"]) == (False, None, None)
    assert (odd["n"], odd["needed_n"], odd["reason"]) == (24, needed, "too_few")
    assert (found["certified"], found["guarantee"], found["n"]) == (True, "pac", 600)
    assert found["statement"].startswith("Joint: the statements of all 2 groups hold together")
    assert found["worst_group"] == max(("easy", "hard"), key=lambda name: rows[name]["holdout_risk"])
    assert found["holdout_risk"] == rows[found["worst_group"]]["holdout_risk"]


def test_the_report_shows_groups_with_intervals_and_the_worst(made: tuple[Path, dict[str, Any]]) -> None:
    out, found = made
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    for words in (
        "Joint: the statements of all 2 groups",
        f"The worst group is {found['worst_group']}:",
        "odd",
    ):
        assert words in page
        assert words in text
    assert f"need n &gt;= {found['groups'][2]['needed_n']} problems, have 24" in page
    assert page.count("group easy</h2>") == page.count("group hard</h2>") == 1
    assert len(json.loads((out / "report.json").read_text())) == 2
    again = desist("report", "--figures", out / "report.json", "--out", out / "again.md", "--json", "--quiet")
    assert again.returncode == 0, again.stderr
    assert (out / "again.md").read_text() == text


def test_a_report_is_made_again_from_the_traces_of_the_group(scored: Path, made: tuple[Path, Any]) -> None:
    out, found = made
    files = [word for path in found["certificates"] for word in ("--certificate", path)]
    done = desist("report", scored, *files, "--out", out / "redone.md", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    text = (out / "redone.md").read_text()
    for row in found["groups"][:2]:
        assert f"| {row['group']} | {row['n']} | {row['threshold']:.6g} |" in text


def test_one_at_a_time_pooled_products_and_other_traces(scored: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    write_traces(other, [replace(t, provenance={}) for t in mixed(200, 9, "other ")])
    done = desist(
        "calibrate", scored, "--alpha", "0.2", "--group-by", "dataset,model", "--each", "--min-group", "20",
        "--small-groups", "rest", "--test", other, "--out", tmp_path / "o", "--json", "--quiet",
    )  # fmt: skip
    found = as_json(done)
    rows = {row["group"]: row for row in found["groups"]}
    assert set(rows) == {
        "(rest)", *(f"dataset={name};model={model}" for name in ("easy", "hard") for model in ("m0", "m1"))
    }  # fmt: skip
    assert rows["(rest)"]["pooled"] == ["dataset=odd;model=m0", "dataset=odd;model=m1"]
    assert found["statement"].startswith("One at a time")
    assert {row["delta"] for row in rows.values()} == {"0.05"}
    held = [figures["held_out"] for figures in json.loads((tmp_path / "o" / "report.json").read_text())]
    assert {each["how"] for each in held if each} == {"file"}
    assert sum(each["n"] for each in held if each) <= 200


def test_groups_may_be_made_by_different_models(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    write_traces(file, mixed(300, 3))
    common = ("calibrate", file, "--alpha", "0.1", "--out", tmp_path / "o", "--json", "--quiet")
    assert "not made alike" in as_json(desist(*common))["error"]["message"]
    found = as_json(desist(*common, "--group-by", "model"))
    prints = {row["group"]: load_certificate(row["certificate"]).fingerprints for row in found["groups"]}
    assert prints == {"m0": {"model": "print0"}, "m1": {"model": "print1"}}


def test_exit_2_only_where_no_group_is_certified(scored: Path, tmp_path: Path) -> None:
    done = desist(
        "calibrate", scored, "--alpha", "0.1", "--group-by", "dataset", "--min-group", "1000",
        "--out", tmp_path, "--json", "--quiet",
    )  # fmt: skip
    found = as_json(done)
    assert done.returncode == 2
    assert (found["certified"], found["certificates"], found["saved_fraction"]) == (False, [], 0.0)
    assert {row["needed_n"] for row in found["groups"]} == {1000}
    assert found["statement"] == "No group has problems enough, so nothing is stated."
    assert (tmp_path / "report.html").exists()
    assert "code 2" in desist("calibrate", "--help").stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--group-by", "color"), "unknown grouping 'color'"),
        (("--joint",), "--joint/--each goes with --group-by"),
        (("--group-by", "dataset", "--alpha", "0.2"), "takes one --alpha"),
        (("--group-by", "dataset", "--method", "crc", "--joint"), "no joint statement"),
    ],
)
def test_flags_that_do_not_fit_are_refused_with_a_remedy(
    scored: Path, tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    done = desist("calibrate", scored, "--alpha", "0.1", "--out", tmp_path, "--json", "--quiet", *flags)
    assert done.returncode == 1
    assert words in as_json(done)["error"]["message"]


def test_certificate_commands_take_the_folder_of_groups(
    scored: Path, made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = made[0]
    shown = as_json(desist("certificate", "show", out, "--json"))["certificates"]
    assert [(each["group"], each["group_rule"]["by"]) for each in shown] == [
        ("easy", ["dataset"]), ("hard", ["dataset"]),
    ]  # fmt: skip
    for field, code in (("patience=1", 0), ("patience=2", 2)):
        done = desist("certificate", "verify", out, "--expect", field, "--json")
        checked = as_json(done)
        assert (done.returncode, checked["valid"]) == (code, not code)
        assert [each["group"] for each in checked["certificates"]] == ["easy", "hard"]
    other = tmp_path / "other"
    done = desist(
        "calibrate", scored, "--alpha", "0.1", "--group-by", "model", "--each", "--out", other, "--json",
        "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    changed = as_json(desist("certificate", "diff", out, other, "--json"))["groups"]
    assert changed["easy"] == {"only_in": "old"}
    assert changed["m0"] == {"only_in": "new"}
    same = as_json(desist("certificate", "diff", out, out, "--json"))["groups"]
    assert {name: each["changed"] for name, each in same.items()} == {"easy": {}, "hard": {}}
    active = as_json(desist("certificate", "activate", out, "--activation", tmp_path / "active", "--json"))
    assert [load_certificate(path).group for path in active["certificates"]] == ["easy", "hard"]
    empty = desist("certificate", "show", tmp_path / "active", "--json")
    assert "holds no certificate" in as_json(empty)["error"]["message"]


def test_old_certificates_in_the_folder_are_not_taken(tmp_path: Path, made: tuple[Path, Any]) -> None:
    """Only what `groups.json` lists: a group that is certified no more must not come back."""
    from desist.commands.certificate_files import certificate_files

    kept = Path(made[1]["certificates"][0])
    (tmp_path / kept.name).write_bytes(kept.read_bytes())
    (tmp_path / "certificate-gone-00000000.json").write_bytes(kept.read_bytes())
    (tmp_path / "groups.json").write_text(
        json.dumps({"groups": [{"certificate": kept.name}, {"certificate": None}]})
    )
    assert certificate_files([tmp_path]) == [tmp_path / kept.name]
