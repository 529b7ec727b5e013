"""`desist monitor`: replays past the drift detector, a reference file, and what audits have found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from desist.calibration import Certificate, calibrate
from desist.calibration.audits import AuditTable
from desist.calibration.drift_reference import DriftReference
from desist.calibration.monitor_folder import MonitorFolder
from desist.cli import app
from desist.data import write_traces
from desist.data.errors import CalibrationError
from tests.fakes.traces import make_traces


def run(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["monitor", *arguments, "--json", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_false_alarms_delay_and_the_reference(tmp_path: Path) -> None:
    traces = make_traces(500, seed=1)
    found = calibrate(traces, alpha="0.1", delta="0.05", loss="consistency", forbidden_problems=())
    assert isinstance(found, Certificate)
    certificate = found.save(tmp_path / "c.json")
    before, later = tmp_path / "before.jsonl", tmp_path / "later.jsonl"
    write_traces(before, traces)
    write_traces(later, make_traces(400, seed=2, right_at_first=0.0, mend_rate=0.05, prefix="x"))
    files = (str(before), "--certificate", str(certificate), "--runs", "5")
    calm = run(*files, "--alarm-every", "100000")
    assert (calm["null_traces"], calm["null_alarms"], calm["later_traces"]) == (5 * 250, 0, 0)
    changed = run(*files, "--then", str(later), "--write-reference")
    assert (changed["found"], changed["missed"]) == (5, 0)
    assert 0 < changed["delay"]["median"] < 300
    made = DriftReference.load(changed["reference"])
    assert made.require(found.policy(), found.digest).n > 100
    words = CliRunner().invoke(app, ["monitor", *files, "--then", str(later), "--quiet"])
    assert "the change was seen after" in words.stdout


def test_what_audits_have_found(tmp_path: Path) -> None:
    with MonitorFolder(tmp_path) as folder:
        table = AuditTable(folder)
        for number in range(60):
            opened = table.open("digest", number.to_bytes(8))
            if number < 59:
                table.close(opened, "same", stopped=True, client_tokens=5, full_tokens=10, extra_tokens=6)
    seen = run("--state", str(tmp_path))["certificates"]["digest"]
    assert (seen["audits"], seen["lost"], seen["open"], seen["extra_tokens"]) == (60, 1, 1, 59 * 6)
    assert "0 losses in 59 certify 5 %, in 299 certify 1 %" in seen["needed"]


def test_too_few_traces_are_refused(tmp_path: Path) -> None:
    traces = make_traces(60, seed=1)
    found = calibrate(traces, alpha="0.2", delta="0.05", loss="consistency", forbidden_problems=())
    assert isinstance(found, Certificate)
    write_traces(tmp_path / "t.jsonl", traces)
    with pytest.raises(CalibrationError, match="at least 200 traces"):
        run(str(tmp_path / "t.jsonl"), "--certificate", str(found.save(tmp_path / "c.json")))
