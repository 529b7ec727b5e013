"""The door opens without torch, and says what it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import desist.probes


def test_import_needs_no_torch() -> None:
    code = "import sys, desist.probes as p; p.HiddenWriter; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_is_there_and_no_other() -> None:
    for name in desist.probes.__all__:
        assert getattr(desist.probes, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = desist.probes.nothing_here
