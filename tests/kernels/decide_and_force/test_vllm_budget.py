"""A second oracle for hard budgets: vLLM's own thinking budget forces the same tokens at the same rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("vllm_budget.py")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_forces_the_same_tokens() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line.split() for line in done.stdout.splitlines() if line.startswith("compared")]
    print(done.stdout)
    assert len(told) == 3
    assert all(int(compared) > 200 and int(forced) > 20 for _, compared, _, forced in told)
