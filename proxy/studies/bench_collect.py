"""How fast traces are collected through vLLM, against the embedded engine: interleaved runs in one process.

Knows the two runners and the clock; what a collection is stands in `collect`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from desist.data.schema import Problem
from desist.proxy.collection.batch_runs import BatchRunner
from desist.proxy.collection.collect import collect
from desist.proxy.engines.embedded.artefacts import builtin_model
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm.offline.runner import vllm_runner
from desist.proxy.studies.builtin import Builtin, builtin_taps

__all__ = ["collection_speeds"]


def collection_speeds(
    builtin: Builtin,
    problems: Sequence[Problem],
    *,
    seed: int,
    rounds: int = 3,
    batch: int = 64,
    arguments: Sequence[str] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Traces per second of "vllm" and "embedded", one for each round; the first pair warms up.

    A trace is a full run with its hidden states and a forced exit at each boundary.
    """
    taps = builtin_taps(builtin.model.n_layers)
    found: dict[str, list[float]] = {"vllm": [], "embedded": []}
    with vllm_runner(
        builtin_model(), builtin.profile, taps=taps, max_rows=batch, arguments=arguments
    ) as runner:
        made: dict[str, tuple[ModelFacts, BatchRunner | None]] = {
            "vllm": (runner.model, runner),
            "embedded": (builtin.model, None),
        }
        for turn in range(rounds + 1):
            for name in sorted(made, reverse=turn % 2 == 0):
                model, used = made[name]
                with tempfile.TemporaryDirectory() as folder:
                    began = time.perf_counter()
                    collect(
                        problems,
                        model=model,
                        profile=builtin.profile,
                        sampling=builtin.sampling,
                        out=Path(folder) / "traces.jsonl",
                        seed=seed + turn,
                        taps=taps,
                        batch=batch,
                        runner=used,
                    )
                    if turn:
                        found[name].append(len(problems) / (time.perf_counter() - began))
            tell(turn, rounds)
    return found
