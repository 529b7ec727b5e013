"""One engine with tensor parallelism, its events read over the wire; prints JSON.

Arguments: the number of ranks, the folder of a model, the folder of a probe, an endpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[5]))


def listen(endpoint: str, events: list[Any], ready: threading.Event) -> None:
    import zmq

    from desist.proxy.engines.vllm.wire import Hello, decode_batch

    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    while True:
        for event in decode_batch(socket.recv_multipart()[-1]).events:
            if isinstance(event, Hello):
                ready.set()
            else:
                events.append(event)


def main(ranks: int, model: Path, probe: Path, endpoint: str) -> dict[str, Any]:
    from tests.fakes.vllm_engine import complete, plugin_config, prompts_of, require_vllm, xargs

    require_vllm()
    from vllm import LLM, SamplingParams

    from desist.proxy.engines.vllm.config import PROCESSOR
    from desist.proxy.engines.vllm.wire import Closed, Opened, Scored, Stopped
    from desist.proxy.studies.builtin import builtin_problems

    config = plugin_config(probe=probe, rom=None, events=endpoint, force=True)
    llm = LLM(
        str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        tensor_parallel_size=ranks,
        seed=0,
        enable_chunked_prefill=False,
        logits_processors=[PROCESSOR],
        additional_config=config.as_additional(),
    )
    events: list[Any] = []
    ready = threading.Event()
    threading.Thread(target=listen, args=(endpoint, events, ready), daemon=True).start()
    assert ready.wait(30), "no Hello came"
    prompts = prompts_of(builtin_problems("test", 8, 12))
    params = [
        SamplingParams(
            temperature=1.0,
            seed=n,
            max_tokens=120,
            ignore_eos=True,
            extra_args=xargs(f"r{n}", mode="active", lam=0.5),
        )
        for n in range(12)
    ]
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    llm.llm_engine.step()
    end = time.monotonic() + 20
    while time.monotonic() < end and sum(isinstance(event, Closed) for event in events) < 12:
        time.sleep(0.05)
    return {
        "generated": [list(output.outputs[0].token_ids) for output in outputs],
        "stopped": {e.identity.key: [e.decision.index, e.tokens] for e in events if isinstance(e, Stopped)},
        "opened": sum(isinstance(event, Opened) for event in events),
        "closed": sum(isinstance(event, Closed) for event in events),
        "scored": sum(isinstance(event, Scored) for event in events),
        "complete": complete(events),
    }


if __name__ == "__main__":
    found = main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)
