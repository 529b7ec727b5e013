from __future__ import annotations

import json
from pathlib import Path

import pytest

from desist.calibration.activation import STATE_FILE, ActivationFolder
from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import Certificate, load_certificate
from desist.data.errors import CalibrationError
from tests.fakes.traces import make_traces


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two certificates and two folders that stand for probes."""
    home = tmp_path_factory.mktemp("made")
    made = []
    for number, alpha in enumerate(("0.1", "0.2")):
        found = calibrate(
            make_traces(200, 7), alpha=alpha, delta="0.1", loss="consistency", forbidden_problems=()
        )
        assert isinstance(found, Certificate)
        made.append(found.save(home / f"c{number}.json"))
    (home / "c0.estimates.json").write_text('{"starts": [0], "remaining": [4.0]}')
    for number in range(2):
        (home / f"p{number}").mkdir()
        (home / f"p{number}" / "card.json").write_text(str(number))
        made.append(home / f"p{number}")
    return made


def test_a_new_folder_has_nothing_active(tmp_path: Path) -> None:
    active = ActivationFolder(tmp_path / "none").read()
    assert (active.number, active.current, active.percent) == (0, None, 100)
    with pytest.raises(CalibrationError, match="no pair before"):
        ActivationFolder(tmp_path / "none").rollback()


def test_activate_and_roll_back(files: list[Path], tmp_path: Path) -> None:
    first, second, one, two = files
    folder = ActivationFolder(tmp_path)
    folder.activate([first], one, when="2026-01-01")
    folder.activate([second, first], two, when="2026-01-02")
    active = folder.read()
    assert active.number == 2
    assert active.current is not None
    assert [load_certificate(path) for path in active.current.certificates] == [
        load_certificate(second),
        load_certificate(first),
    ]
    assert active.current.probe is not None
    assert (active.current.probe / "card.json").read_text() == "1"
    assert active.current.certificates[1].with_suffix(".estimates.json").is_file()
    back = folder.rollback(when="2026-01-03")
    assert back == folder.read()
    assert back.number == 3
    assert back.current is not None
    assert back.current.probe is not None
    assert (back.current.probe / "card.json").read_text() == "0"
    assert back.current.activated == "2026-01-03"
    with pytest.raises(CalibrationError, match="no pair before"):
        folder.rollback()


def test_the_folder_can_be_moved_and_the_sources_removed(files: list[Path], tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    source.write_bytes(files[0].read_bytes())
    ActivationFolder(tmp_path / "a").activate([source])
    source.unlink()
    (tmp_path / "a").rename(tmp_path / "b")
    active = ActivationFolder(tmp_path / "b").read()
    assert active.current is not None
    assert load_certificate(active.current.certificates[0]) == load_certificate(files[0])


def test_a_stage_keeps_the_pair_before_for_the_other_requests(files: list[Path], tmp_path: Path) -> None:
    first, second, one, two = files
    folder = ActivationFolder(tmp_path)
    folder.activate([first], one)
    assert (
        folder.activate([second], one, percent=10).former_certificates
        == folder.read().history[-1].certificates
    )
    wider = folder.activate([second], one, percent=50)
    assert len(wider.history) == 1  # the same pair again: the one before stays the one before
    assert wider.percent == 50
    assert folder.activate([second], one).former_certificates == ()
    # Another probe: an engine runs one, so requests outside the stage are not stopped.
    assert folder.activate([first], two, percent=10).former_certificates == ()
    assert folder.rollback().percent == 100


def test_what_cannot_be_used_changes_nothing(files: list[Path], tmp_path: Path) -> None:
    folder = ActivationFolder(tmp_path)
    folder.activate([files[0]])
    before = folder.read()
    (tmp_path / "empty").mkdir()
    for certificates, probe, percent in (
        ([tmp_path / "none.json"], None, 100),
        ([files[1]], tmp_path / "empty", 100),
        ([files[1]], None, 0),
        ([], None, 100),
    ):
        with pytest.raises(CalibrationError):
            folder.activate(certificates, probe, percent=percent)
    assert folder.read() == before
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("text", ["", "[]", '{"number": -1}', '{"schema_version": 2, "number": 1}'])
def test_a_damaged_state_is_told(files: list[Path], tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(CalibrationError, match="again"):
        ActivationFolder(tmp_path).read()


def test_the_state_is_plain_json_with_relative_paths(files: list[Path], tmp_path: Path) -> None:
    ActivationFolder(tmp_path).activate([files[0]], files[2], percent=25, when="2026-01-01")
    plain = json.loads((tmp_path / STATE_FILE).read_text())
    assert plain["current"]["certificates"] == [f"certificates/{load_certificate(files[0]).digest[:16]}.json"]
    assert (plain["number"], plain["current"]["percent"]) == (1, 25)
