"""The detector in service: thinned by user, anew for a new certificate, killed without a loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tests.fakes.killed_watch as killed
from benchmarks.drift import POLICY
from desist.calibration.drift_reference import build_reference
from desist.calibration.drift_watch import DriftWatch, Thinner
from desist.calibration.monitor_folder import MonitorFolder
from desist.data.errors import CalibrationError

ROWS = np.random.default_rng(1).random((400, 4))
REFERENCE = build_reference(ROWS[:200], POLICY)


def test_killing_the_process_in_mid_write_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, killed.__file__, str(tmp_path / "state"), "5", "25"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 25
    assert found[-1]["found"] > 25
    for each in found:
        assert each["same"]
        # What was acknowledged is there; one more may be, written when the kill came.
        assert each["acknowledged"] <= each["found"] <= each["acknowledged"] + 1


def test_users_are_thinned_by_key_only() -> None:
    thinner = Thinner(gap=3, salt="s")
    assert [thinner.admits(key) for key in ["a", "a", "b", "a", None, None, "a", "a"]] == [
        True, False, True, False, True, True, True, False,
    ]  # fmt: skip
    assert (thinner.n, thinner.dropped) == (5, 3)
    for number in range(1000):
        thinner.admits(f"user {number}")
    assert len(thinner.state()["seen"]) == 3
    assert "user" not in json.dumps(thinner.state())
    again = Thinner(gap=3, salt="s")
    again.restore(json.loads(json.dumps(thinner.state())))
    assert not again.admits("user 999")


def test_a_new_certificate_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with MonitorFolder(path) as folder:
        watch = DriftWatch(REFERENCE, folder=folder)
        for row in ROWS[200:].tolist():
            watch.observe(tuple(row))
        evidence = watch.detector.evidence.log_evidence
    with MonitorFolder(path) as folder:
        again = DriftWatch(REFERENCE, folder=folder)
        assert (again.detector.n, again.restarted) == (200, False)
        assert again.detector.evidence.log_evidence == evidence
        other = DriftWatch(build_reference(ROWS[:200], POLICY, certificate="new"), folder=folder)
        assert (other.detector.n, other.restarted) == (0, True)


def test_an_alarm_is_kept_until_it_is_ended(tmp_path: Path) -> None:
    with MonitorFolder(tmp_path / "s") as folder:
        watch = DriftWatch(REFERENCE, folder=folder, alarm_every=1000)
        raised = [watch.observe((0.99, 0.5, 0.5, 0.5)) for _ in range(200)]
        assert sum(raised) == 1
        assert watch.alarmed
        assert watch.leading == "reasoning_tokens"
        assert DriftWatch(REFERENCE, folder=folder, alarm_every=1000).alarmed
        watch.reset()
        assert not DriftWatch(REFERENCE, folder=folder, alarm_every=1000).alarmed


def test_one_writer_and_folders_of_its_own_kind(tmp_path: Path) -> None:
    path = tmp_path / "some" / "state"
    with MonitorFolder(path), pytest.raises(CalibrationError, match="another process"):
        MonitorFolder(path)
    with MonitorFolder(path) as folder, MonitorFolder(path, write=False) as reader:
        folder.save("odd/name: 1", {"a": 1})
        folder.save("odd_name_ 1", {"a": 2})
        assert reader.load("odd/name: 1") == {"a": 1}
        assert reader.load("b") is None
        with pytest.raises(CalibrationError, match="for reading"):
            reader.save("a", {})
    (path / "b.json").write_text('{"version": 9}')
    (path / "c.json").write_text('{"vers')
    with MonitorFolder(path) as folder:
        with pytest.raises(CalibrationError, match="version 9"):
            folder.load("b")
        with pytest.raises(CalibrationError, match="no monitoring state"):
            folder.load("c")
    with pytest.raises(CalibrationError, match="not there"):
        MonitorFolder(tmp_path / "none", write=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match="no folder"):
        MonitorFolder(tmp_path / "file")


def test_a_line_that_was_cut_short_costs_itself_only(tmp_path: Path) -> None:
    with MonitorFolder(tmp_path) as folder:
        folder.append({"number": 1})
    with (tmp_path / "audits.jsonl").open("ab") as file:
        file.write(b'{"number": 2, "cer')
    with MonitorFolder(tmp_path) as folder:
        folder.append({"number": 3})
        assert [line["number"] for line in folder.lines()] == [1, 3]
