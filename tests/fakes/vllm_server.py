"""A vLLM server without vLLM: scripted tokens, vLLM's streams, and the real plugin runtime and sockets.

Each step the runtime sees one row for every running request, as in vLLM, and what it forces is obeyed. The
hidden state of the token at reasoning position p is `state_of(p)` in every column, so that a probe's score
is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from desist.controller import builtin_profile
from desist.data.errors import ControlError
from desist.kernels import Layer
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.embedded.artefacts import Scorers
from desist.proxy.engines.model import ModelFacts, read_model
from desist.proxy.engines.vllm.inside.commands import CommandInbox
from desist.proxy.engines.vllm.inside.evidence import RowOf, Stream
from desist.proxy.engines.vllm.inside.publisher import Publisher
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring
from desist.proxy.engines.vllm.params import read_params
from desist.proxy.engines.vllm.wire import (
    WIRE_VERSION,
    CommandDone,
    Event,
    Hello,
    Ping,
    SetMode,
    StopNow,
)

WIDTH, LAYERS = 8, 4
PROFILE = builtin_profile()
ANSWER = "The answer is \\boxed{12}."
THOUGHTS = "5 + 7 = 12. Wait, 5 + 7 = 12. Hmm, 5 + 7 = 12. Alternatively, 7 + 5 = 12. So the answer is 12."
SCRIPT = f"{THOUGHTS}\n</think>\n\n{ANSWER}<|im_end|>"


def reasoner() -> ModelFacts:
    """The built-in reasoner's tokenizer."""
    return read_model(builtin_model(), dtype="float32", weights=False)


def threshold_probe(middle: float = 10.0) -> LynxProbe:
    """A probe on layer 2 whose score is sigmoid(state - middle)."""
    weight = torch.zeros(1, WIDTH)
    weight[0, 0] = 1.0
    card = ProbeCard("logistic", (2,), WIDTH, "consistent", hidden_dtype="float32")
    return LynxProbe(card, [Layer(weight, torch.tensor([-middle]))])


@dataclass(eq=False)
class _Running:
    request_id: str
    prompt: list[int]
    limit: int
    script: list[int]
    tokens: list[int] = field(default_factory=list)
    chunks: asyncio.Queue[tuple[list[int], str | None]] = field(default_factory=asyncio.Queue)
    handed_off: bool = False
    gone: bool = False


@dataclass
class FakeVllm:
    """Serves `script` to everybody, one token a step; once stopped, or where the prompt has closed thinking,
    `after_stop`.

    `parser`: a reasoning parser runs; `names`: the one that the plugin names. `lose`: events that never reach
    the network. `per_chunk`: tokens in a streamed chunk. `mask`: a token id that cannot be forced.
    """

    script: str = SCRIPT
    after_stop: str = f"{ANSWER}<|im_end|>"
    decide: str = "engine"
    stream: str | None = None
    parser: bool = False
    names: str = ""
    per_chunk: int = 1
    pause_s: float = 0.0
    state_of: Callable[[int], float] = float
    lose: Callable[[Event], bool] = lambda event: False
    mask: int | None = None
    outside: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    aborted: int = 0

    def __post_init__(self) -> None:
        self.facts = reasoner()
        self.runtime = Runtime(
            PROFILE,
            self.facts.vocabulary,
            Scoring(Scorers(probe=threshold_probe()), LAYERS),
            stream=Stream((2,), self.stream) if self.stream else Stream(),  # type: ignore[arg-type]
            score_here=self.decide == "engine",
            min_answer_tokens=8,
        )
        self.publisher = Publisher("tcp://127.0.0.1:0", hello=self.hello)
        self.inbox = CommandInbox(
            "tcp://127.0.0.1:0",
            prepare=lambda command: command,
            answer=lambda done: self.publisher.publish([done]),
        )
        self.runtime.sinks.append(self._publish)
        self._numbers = itertools.count()

    def hello(self) -> Hello:
        prints = {**self.facts.fingerprints_with(PROFILE), "model": "fake"}
        return Hello(
            WIRE_VERSION, "0", "0.32.0", "fake", 0, self.decide, self.stream, (2,), WIDTH,
            ("probe",) if self.runtime.score_here else (), prints, self.runtime.cap, self.outside,
            parser=self.names,
        )  # fmt: skip

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", lambda request: Response()),
        ]

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            steps = asyncio.create_task(self._steps())
            yield
            steps.cancel()
            self.inbox.close()
            self.publisher.close()

        return Starlette(routes=routes, lifespan=lifespan)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "reasoner", "max_model_len": 1024, "owned_by": "vllm"}]})

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        chat = "messages" in body
        try:
            read_params(body.get("vllm_xargs"))
        except ControlError as error:
            return JSONResponse({"error": {"message": str(error), "code": 400}}, 400)
        prompt = body.get("prompt", "")
        if chat:
            ids = self.facts.chat_ids(tuple(body["messages"]), body.get("chat_template_kwargs"))
        else:
            ids = tuple(prompt) if isinstance(prompt, list) else self.facts.text_ids(prompt)
        name = f"{'chatcmpl' if chat else 'cmpl'}-{request.headers.get('x-request-id')}"
        limit = body.get("max_tokens") or 500
        one = _Running(
            f"{name}{'' if chat else '-0'}-{next(self._numbers):08x}",
            list(ids),
            limit,
            list(self.facts.vocabulary.encode(self.after_stop if self._close in ids else self.script)),
        )
        self.running.append(one)
        self.runtime.entered(one.request_id, ids, limit, body.get("vllm_xargs"))
        return StreamingResponse(self._stream(one, body, chat), media_type="text/event-stream")

    async def _stream(self, one: _Running, body: dict[str, Any], chat: bool) -> AsyncIterator[bytes]:
        ids_wanted = body.get("return_token_ids")
        n, thinking, first = 0, True, True
        finish: str | None = None

        def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
            return (
                b"data: " + json.dumps({"id": one.request_id, "choices": choices, **more}).encode() + b"\n\n"
            )

        try:
            if chat:
                opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield event([opening], prompt_token_ids=one.prompt if ids_wanted else None)
            while finish is None:
                ids, finish = await one.chunks.get()
                while len(ids) < self.per_chunk and finish is None:
                    more, finish = await one.chunks.get()
                    ids = [*ids, *more]
                n += len(ids)
                told: dict[str, str] = {}
                for token in ids:
                    thinking = thinking and token != self._close
                    name = "reasoning" if self.parser and thinking else "content"
                    if token not in self.facts.hidden_ids:
                        told[name] = told.get(name, "") + self.facts.vocabulary.token_bytes(token).decode()
                choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
                choice |= {"delta": told} if chat else {"text": told.get("content", "")}
                if ids_wanted:
                    choice["token_ids"] = ids
                    if not chat and first:
                        choice["prompt_token_ids"] = one.prompt
                first = False
                yield event([choice])
            usage = {"prompt_tokens": len(one.prompt), "completion_tokens": n}
            yield event([], usage=usage, system_fingerprint="fp")
            yield b"data: [DONE]\n\n"
        finally:
            if finish is None:
                one.gone = True
                self.aborted += 1

    @property
    def _close(self) -> int:
        return self.facts.vocabulary.special_id(PROFILE.think_close) or -1

    async def _steps(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s)
            for command, _ in self.inbox.take():
                self.publisher.publish([self._obey(command)])
            self.runtime.left([one.request_id for one in self.running if one.gone])
            self.running = [one for one in self.running if not one.gone]
            rows = [
                RowOf(
                    one.request_id,
                    row,
                    row,
                    len(one.prompt) + len(one.tokens) - 1,
                    (one.prompt + one.tokens)[-1],
                )
                for row, one in enumerate(self.running)
            ]
            self.runtime.step(rows, self)
            forced = {force.row: force.what.token for force in self.runtime.forces}
            for row, one in enumerate(self.running):
                self._next(one, forced.get(row))

    def read(self, layers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """The hidden states of the step (`scoring.TapRows`)."""
        states = []
        for row in rows:
            tracked = self.runtime.tracked[self.running[row].request_id]
            states.append(self.state_of(tracked.session.detector.position))
        return torch.tensor(states)[:, None].expand(len(rows), WIDTH * len(layers)).contiguous()

    def _next(self, one: _Running, forced: int | None) -> None:
        if forced is not None and forced != self.mask:
            token = forced
            if not one.handed_off:
                one.handed_off, one.script = True, list(self.facts.vocabulary.encode(self.after_stop))
        else:
            token = one.script.pop(0) if one.script else next(iter(self.facts.end_ids))
        one.tokens.append(token)
        finish = "stop" if token in self.facts.end_ids else "length" if len(one.tokens) >= one.limit else None
        one.chunks.put_nowait(([token], finish))
        one.gone = finish is not None

    def _obey(self, command: Any) -> CommandDone:
        if not self.outside:
            return CommandDone(command.id, False, "refused: tensor parallelism")
        if isinstance(command, StopNow):
            concerned = self.runtime.stop_now(command)
            return CommandDone(command.id, bool(concerned), f"{concerned} running")
        if isinstance(command, SetMode):
            self.runtime.limit(command.cap)
            return CommandDone(command.id, True, command.cap)
        if isinstance(command, Ping):
            return CommandDone(command.id, True, "running")
        return CommandDone(
            command.id, command.probe != "bad", "reloaded" if command.probe != "bad" else "no such probe"
        )

    def _publish(self, events: Sequence[Event]) -> None:
        self.publisher.publish([event for event in events if not self.lose(event)])
