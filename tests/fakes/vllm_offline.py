"""A stand-in of an offline vLLM engine: the tiny model, one token a step, and the plugin's real runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from desist.controller import ModelProfile
from desist.proxy.engines.embedded.artefacts import Scorers
from desist.proxy.engines.embedded.sampler import Uniforms, choose
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm.inside.evidence import RowOf, Stream
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring
from desist.proxy.engines.vllm.offline.engine import Ask, News
from desist.proxy.engines.vllm.wire import Event
from tests.fakes.tiny_model import PROFILE, tiny_model

__all__ = ["TinyVllm"]

Listener = Callable[[Sequence[Event]], None]


@dataclass
class Rows:
    """The hidden states of one step: `states[layer]` [rows, D]."""

    states: list[torch.Tensor]

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        return torch.cat([self.states[layer][list(rows)] for layer in layers], dim=-1)


@dataclass
class TinyVllm:
    """Implements `Generator`. `lose` tells which events never arrive; `asked` are all requests so far."""

    taps: tuple[int, ...] = ()
    token_tap: int | None = None
    lose: Callable[[Event], bool] = lambda _: False
    profile: ModelProfile = PROFILE
    facts: ModelFacts = field(default_factory=tiny_model)
    asked: list[Ask] = field(default_factory=list)
    aborted: int = 0
    widest: int = 0
    _running: dict[str, tuple[Ask, list[int]]] = field(default_factory=dict)
    _ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        scoring = Scoring(Scorers(), self.facts.n_layers)
        stream = Stream(self.taps, "float32" if self.taps else None, self.token_tap)
        self.runtime = Runtime(self.profile, self.facts.vocabulary, scoring, stream=stream, score_here=False)

    def listen(self, listener: Listener) -> None:
        self.runtime.sinks.append(lambda events: listener([e for e in events if not self.lose(e)]))

    def add(self, request_id: str, ask: Ask) -> None:
        if len(ask.prompt_ids) >= (self.facts.max_length or 0):
            raise ValueError("the prompt is too long")
        self.asked.append(ask)
        self._running[request_id] = (ask, [])
        self.runtime.entered(request_id, ask.prompt_ids, ask.max_tokens, ask.xargs)

    def abort(self, request_id: str) -> None:
        del self._running[request_id]
        self._ended.append(request_id)
        self.aborted += 1

    def forget_prompts(self) -> None:
        assert not self._running

    @torch.inference_mode()
    def step(self) -> list[News]:
        self.runtime.left(self._ended)
        self._ended.clear()
        self.widest = max(self.widest, len(self._running))
        network = tiny_model().network
        outputs = [
            network(torch.tensor([[*ask.prompt_ids, *made]]), output_hidden_states=True)
            for ask, made in self._running.values()
        ]
        rows = [
            RowOf(name, n, n, len(ask.prompt_ids) + len(made) - 1, [*ask.prompt_ids, *made][-1])
            for n, (name, (ask, made)) in enumerate(self._running.items())
        ]
        layers = zip(*(output.hidden_states for output in outputs), strict=True)
        self.runtime.step(rows, Rows([torch.stack([s[0, -1] for s in states]) for states in layers]))
        return [
            self._sample(row.request_id, output.logits[0, -1])
            for row, output in zip(rows, outputs, strict=True)
        ]

    def _sample(self, name: str, logits: torch.Tensor) -> News:
        ask, made = self._running[name]
        if ask.locked is not None:
            logits[ask.locked] = -torch.inf
        (token,) = choose(logits[None], [ask.draw], [Uniforms(ask.seed).at(len(made))])
        made.append(token)
        total = len(ask.prompt_ids) + len(made)
        finished = token in ask.end_ids or len(made) >= ask.max_tokens or total > (self.facts.max_length or 0)
        if finished:
            del self._running[name]
            self._ended.append(name)
        measured = (float(logits.log_softmax(-1)[token]),) if ask.measured else ()
        return News(name, (token,), measured, finished)
