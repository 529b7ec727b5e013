"""Runs a few requests on vLLM's V2 model runner on the CPU, under the Triton interpreter; prints JSON.

First on the device path, our own kernels deciding and forcing inside vLLM's V2 sampler; then once more, the
host deciding and the boundary probe alone in a kernel. A program of its own, because Triton must be told
before vLLM is imported. Arguments: "plain" or "drafts", a draft model's folder, and the requests' controls.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")


def main(mode: str, draft: str, controls: list[dict[str, Any]]) -> dict[str, Any]:
    import triton.backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    triton.backends.backends["cpu"] = SimpleNamespace(driver=Driver, compiler=None)  # type: ignore[assignment]

    from tests.fakes.vllm_engine import (
        MODEL,
        OfflineEngine,
        complete,
        plugin_config,
        prompts_of,
        require_vllm,
        xargs,
    )
    from tests.fakes.vllm_states import ALL_TAPS, Recorder, tolerance, transformers_states

    require_vllm()
    from vllm import SamplingParams

    from desist.proxy.engines.vllm.inside.evidence import Stream
    from desist.proxy.studies.builtin import builtin_problems

    tight: dict[str, Any] = {
        "max_model_len": 160, "max_num_batched_tokens": 64, "max_num_seqs": 4, "num_gpu_blocks_override": 9,
    }  # fmt: skip
    if mode == "drafts":
        tight |= {
            "speculative_config": {"model": draft, "method": "draft_model", "num_speculative_tokens": 2},
            "num_gpu_blocks_override": 40,
        }
    # Without a type no hidden state leaves the engine; the layers are read all the same.
    engine = OfflineEngine.start(plugin_config(taps=ALL_TAPS, kernels="triton"), **tight)
    prompts = prompts_of(builtin_problems("test", 9, len(controls)))
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, extra_args=xargs(f"r{n}", **control))
        for n, control in enumerate(controls)
    ]
    on_device = run_on_device(engine, prompts, params)
    engine.events.clear()
    engine.installed.path = None
    engine.runtime.stream = Stream(engine.runtime.stream.layers, "float32")
    recorder = engine.installed.runtime = Recorder(engine.runtime)
    before = engine.metric("vllm:num_preemptions")
    generated = engine.run(prompts, params)
    expected = transformers_states(MODEL, [(*a, *b) for a, b in zip(prompts, generated, strict=True)])
    apart: list[float] = []
    within = True
    for number, (prompt, tokens) in enumerate(zip(prompts, generated, strict=True)):
        ids = (*prompt, *tokens)
        for position in range(len(prompt) - 1, len(ids) - 1):
            token, state = recorder.seen[f"r{number}", position]
            if token != ids[position]:  # a refused draft was the last to be read here
                continue
            gap = abs(state.reshape(len(ALL_TAPS), -1) - expected[number][:, position])
            within = within and bool((gap <= tolerance(expected[number])).all())
            apart.append(float(gap[-1].max()))
    return {
        "runner": engine.installed.runner,
        "kernels": engine.runtime.scoring.in_kernels,
        "generated": generated,
        "rows": len(apart),
        "last_tap": max(apart),
        "within": within,
        "preemptions": engine.metric("vllm:num_preemptions") - before,
        "drafted": engine.metric("vllm:spec_decode_num_draft_tokens"),
        "accepted": engine.metric("vllm:spec_decode_num_accepted_tokens"),
        "twice": sum(times > 1 for times in recorder.times.values()),
        "complete": complete(engine.events),
        "errors": engine.runtime.errors,
        "left": len(engine.runtime.tracked),
        **told(engine),
        "device": on_device,
    }


def run_on_device(engine: Any, prompts: Any, params: Any) -> dict[str, Any]:
    """What came of the requests where the device decides, and what the host counted when it replayed them."""
    from tests.fakes.vllm_engine import complete

    path = engine.installed.path
    adopted: set[str] = set()
    adopt = path.adopt

    def counted(request_id: str) -> None:
        adopt(request_id)
        adopted.update(path.requests)

    path.adopt = counted
    generated = engine.run(prompts, params)
    replay = path.replay
    return {
        "generated": generated,
        "adopted": len(adopted),
        "rows": replay.rows,
        "disagreements": replay.disagreements,
        "lost": replay.lost,
        "errors": engine.runtime.errors,
        "left": len(engine.runtime.tracked) + len(path.requests),
        "complete": complete(engine.events),
        "preemptions": engine.metric("vllm:num_preemptions"),
        **told(engine),
    }


def told(engine: Any) -> dict[str, Any]:
    """The events so far."""
    from desist.proxy.engines.vllm.wire import Closed, Scored, Stopped

    return {
        "scored": [
            [e.identity.key, e.index, e.position, e.tokens, e.kind, e.text, e.held, e.scores]
            for e in engine.told(Scored)
        ],
        "stopped": {
            e.identity.key: [e.decision.index, e.tokens, list(e.handoff)] for e in engine.told(Stopped)
        },
        "closed": {
            e.identity.key: [e.stop_reason, e.tokens, e.reasoning_tokens, e.handoff_tokens, e.uncontrolled]
            for e in engine.told(Closed)
        },
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[5]))
    found = main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)
