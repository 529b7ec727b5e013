"""Shared by all tests: `tests.fakes` can be imported, real traces are found or the test is skipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair: no test fails for it.
settings.register_profile("desist", deadline=None)
settings.load_profile("desist")
# Kernels are interpreted where there is no GPU to run them. Triton reads this when it is first imported.
if not Path("/dev/nvidia0").exists() and not Path("/dev/kfd").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real saved traces; the test is skipped where there is none."""
    folder = Path(os.environ.get("DESIST_TRACES", ROOT.parent / "shared" / "traces"))
    if not any(folder.glob("*.jsonl.gz")):
        pytest.skip(f"no real traces at {folder}: set DESIST_TRACES to the folder that holds them")
    return folder
