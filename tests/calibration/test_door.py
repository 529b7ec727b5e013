from __future__ import annotations

import subprocess
import sys

import desist.calibration as door


def test_every_public_name_is_there_once() -> None:
    assert len(set(door.__all__)) == len(door.__all__)
    assert all(hasattr(door, name) for name in door.__all__)
    for name in (
        "calibrate",
        "load_certificate",
        "Certificate",
        "CannotCertify",
        "compare_rivals",
        "write_report",
    ):
        assert name in door.__all__


def test_the_door_opens_without_the_heavy_libraries() -> None:
    heavy = "{'torch', 'fastapi', 'sklearn', 'mapie', 'plotly'}"
    code = f"import sys, desist.calibration; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
