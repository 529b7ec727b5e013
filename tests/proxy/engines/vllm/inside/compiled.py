"""One compiled engine, with the plugin or without, on the compile cache of the environment; prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[5]))


def main(with_plugin: bool) -> dict[str, object]:
    from tests.fakes.vllm_engine import MODEL, OfflineEngine, plugin_config, prompts_of, require_vllm, xargs
    from tests.fakes.vllm_states import ALL_TAPS, Recorder, tolerance, transformers_states

    require_vllm()
    from vllm import SamplingParams

    from desist.proxy.studies.builtin import builtin_problems

    config = plugin_config(taps=ALL_TAPS, stream="float32") if with_plugin else None
    engine = OfflineEngine.start(config, enforce_eager=False, max_model_len=256)
    prompts = prompts_of(builtin_problems("test", 6, 4))
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=100,
            extra_args=xargs(f"r{n}", mode="shadow", lam=0.9) if with_plugin else None,
        )
        for n in range(4)
    ]
    within = None
    if with_plugin:
        recorder = engine.installed.runtime = Recorder(engine.runtime)
        generated = engine.run(prompts, params)
        expected = transformers_states(MODEL, [(*a, *b) for a, b in zip(prompts, generated, strict=True)])
        within = all(
            bool(
                (
                    abs(state.reshape(len(ALL_TAPS), -1) - expected[int(key[1:])][:, position])
                    <= tolerance(expected[int(key[1:])])
                ).all()
            )
            for (key, position), (_, state) in recorder.seen.items()
        ) and len(recorder.seen) == sum(map(len, generated))
    else:
        generated = engine.run(prompts, params)
    mode = str(engine.llm.llm_engine.vllm_config.compilation_config.mode)
    return {"generated": generated, "within": within, "mode": mode}


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1] == "plugin")), flush=True)
    os._exit(0)
