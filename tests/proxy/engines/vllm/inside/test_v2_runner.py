"""The V2 model runner, on the CPU under the Triton interpreter (see `v2_runner`), against the V1 runner.

Twice: where the device decides, with nothing but kernels between the forward pass and the sampler, and where
the host does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist.proxy.engines.vllm.wire import Scored, Stopped
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.vllm_engine import OfflineEngine, plugin_config, prompts_of, require_vllm, xargs
from tests.fakes.vllm_states import noisy_model

PROGRAM = Path(__file__).with_name("v2_runner.py")
#: Stopped by the boundary probe, by the streaming one, by its budget, not at all, and before it begins.
CONTROLS: list[dict[str, Any]] = [
    {"mode": "active", "lam": 0.9, "min_answer_tokens": 8},
    {"mode": "active", "lam": 0.9, "scorer": "rom", "min_answer_tokens": 8},
    {"mode": "off", "budget": 20, "min_answer_tokens": 8},
    {"mode": "shadow", "lam": 0.9, "min_answer_tokens": 8},
    {"mode": "off", "budget": 0, "min_answer_tokens": 8},
]


@pytest.fixture(scope="module")
def v1() -> dict[str, Any]:
    """The same requests on the V1 runner."""
    require_vllm()
    from vllm import SamplingParams

    engine = OfflineEngine.start(plugin_config(), max_model_len=160)
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, extra_args=xargs(f"r{n}", **control))
        for n, control in enumerate(CONTROLS)
    ]
    generated = engine.run(prompts_of(builtin_problems("test", 9, len(CONTROLS))), params)
    engine.close()
    stops = {e.identity.key: [e.decision.index, e.tokens, list(e.handoff)] for e in engine.told(Stopped)}
    scores = {(e.identity.key, e.index): e.scores for e in engine.told(Scored)}
    return {"generated": [list(tokens) for tokens in generated], "stopped": stops, "scores": scores}


def without_scores(scored: list[Any]) -> list[Any]:
    return scored[:-1]


def require_scores(told: list[list[Any]], expected: dict[tuple[str, int], dict[str, float]]) -> None:
    """Both probes at each boundary, each once."""
    scores = {(each[0], each[1]): each[-1] for each in told}
    assert len(told) == len(scores)
    assert scores.keys() == expected.keys()
    for place, each in expected.items():
        assert scores[place] == pytest.approx(each, abs=1e-4)


def run(mode: str, draft: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), mode, str(draft), json.dumps(CONTROLS)],
        capture_output=True,
        text=True,
        timeout=540,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "drafts"])
def test_states_forcing_and_decisions_are_those_of_the_v1_runner(
    mode: str, v1: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip(
        "triton", reason="the V2 model runner needs Triton, of which only the interpreter runs"
    )
    found = run(mode, noisy_model(tmp_path, 0.05) if mode == "drafts" else tmp_path)
    print({key: found[key] for key in ("rows", "last_tap", "preemptions", "drafted", "accepted")})
    assert (found["runner"], found["kernels"]) == ("v2", True)
    assert found["last_tap"] <= 1e-4
    assert found["within"]
    assert found["rows"] >= 100
    assert (found["errors"], found["left"], found["complete"]) == (0, 0, True)
    assert found["generated"] == v1["generated"]
    assert found["stopped"] == v1["stopped"]
    assert len(v1["stopped"]) == 4
    assert v1["stopped"]["r4"][1] == 0
    require_scores(found["scored"], v1["scores"])
    device = found["device"]
    print({key: device[key] for key in ("adopted", "rows", "preemptions")})
    assert (device["adopted"], device["left"], device["errors"]) == (len(CONTROLS), 0, 0)
    assert (device["disagreements"], device["lost"], device["complete"]) == (0, 0, True)
    assert device["generated"] == v1["generated"]
    assert device["stopped"] == v1["stopped"]
    assert device["closed"] == found["closed"]
    require_scores(device["scored"], v1["scores"])
    assert sorted(map(without_scores, device["scored"])) == sorted(map(without_scores, found["scored"]))
    for key, (_, start, handoff) in device["stopped"].items():
        assert device["generated"][int(key[1:])][start : start + len(handoff)] == handoff
    if mode == "plain":
        assert found["preemptions"] >= 1
        assert device["preemptions"] >= 1
        assert found["twice"] == 0
    else:
        assert 0 < found["accepted"] < found["drafted"]
