"""The fake's HTTP side: knobs, routes, and the objects that carry what its script writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.server import live_server
from tests.fakes.upstream.faults import BEFORE, Fault, broken, early
from tests.fakes.upstream.script import (
    Dialect,
    Script,
    Thoughts,
    Token,
    drawn_length,
    stopped_at,
    with_limit,
)
from tests.fakes.upstream.shapes import Shape
from tests.fakes.upstream.vocabulary import HEADER, Vocabulary

__all__ = ["FakeUpstream", "served"]


@dataclass
class FakeUpstream:
    """Thinks `thoughts`, answers `answer`; a continued request gets `continued` only. One token a chunk.

    What it can do: `token_ids` (return_token_ids; tags are tokens then), `tokenizes` (/tokenize), `strips`
    (its template takes thinking out of old turns, so that a continued message thinks anew),
    `native_budgets` (dotted field names that bind; others are ignored in silence), `running_usage`,
    `final_usage`, `reasoning_details`, `streams`.
    What it writes: `thinks` (thoughts by request), `lengths` (as many thoughts as the seed draws),
    `structured` where a schema is asked for, `tool` where tools are given, `per_chunk` tokens in one
    chunk, `tag_cut` (where tags are cut in two), `deltas` (streamed as they stand; a list is one chunk with
    several (index, delta) choices).
    """

    thoughts: tuple[str, ...] = ("First ", "add. ", "Then ", "check. ", "Wait, ", "again. ", "Done.")
    answer: tuple[str, ...] = ("It is ", "4.")
    continued: tuple[str, ...] = ("So it ", "is 4.")
    structured: tuple[str, ...] = ('{"cents"', ": 4}")
    tool: Mapping[str, str] | None = None
    thinks: Thoughts | None = None
    lengths: tuple[int, int] | None = None
    deltas: Sequence[Mapping[str, Any] | list[tuple[int, Mapping[str, Any]]]] | None = None
    dialect: Dialect = "reasoning"
    tag_cut: int | None = 4
    per_chunk: int = 1
    pause_s: float = 0.0
    header_pause_s: float = 0.0
    stall_s: float = 2.0
    running_usage: bool = True
    final_usage: bool = True
    reasoning_details: bool = False
    token_ids: bool = False
    tokenizes: bool = True
    strips: bool = False
    native_budgets: frozenset[str] = frozenset()
    answer_as_reasoning: bool = False
    refuse: tuple[int, bytes, Mapping[str, str]] | None = None
    refuse_continuation: tuple[int, bytes] | None = None
    error_after: int | None = None
    cut_after: int | None = None
    faults: Sequence[Fault] = ()
    streams: bool = True
    extra_delta: dict[str, Any] | None = None
    finish: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    stop_listening: Callable[[], None] | None = field(default=None, repr=False)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/health", lambda request: Response()),
                Route("/version", lambda request: JSONResponse({"version": "0.0-fake"})),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "up", "object": "model", "max_model_len": 9}]})

    async def _tokenize(self, request: Request) -> Response:
        if not self.tokenizes:
            return JSONResponse({"detail": "Not Found"}, 404)
        ids = self._prompt_ids(await request.json())
        return JSONResponse({"count": len(ids), "max_model_len": 9, "tokens": ids, "token_strs": None})

    async def _detokenize(self, request: Request) -> Response:
        return JSONResponse({"prompt": self.vocabulary.decode((await request.json())["tokens"])})

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        call = len(self.bodies)
        self.bodies.append(body)
        self.paths.append(request.url.path)
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.header_pause_s)
        if self.refuse is not None:
            status, content, headers = self.refuse
            return Response(content, status, dict(headers))
        continues = self._continues(body)
        if continues and self.refuse_continuation is not None:
            return Response(self.refuse_continuation[1], self.refuse_continuation[0])
        fault = next((each for each in self.faults if each.meets(call, continues)), None)
        gone = any(each.kind == "refused" and each.call == call + 1 for each in self.faults)
        if gone and self.stop_listening is not None:
            self.stop_listening()
        if fault is not None and fault.after is None and fault.kind in BEFORE:
            spoilt = await early(fault, request, self.stall_s)
            if spoilt is not None:
                return spoilt
        shape = self._shape(body, request.url.path)
        tokens, finish, string = self._tokens(body, continues, parsed=shape.chat)
        if not (self.streams and body.get("stream")):
            return JSONResponse(shape.whole(tokens, finish, string))
        stream = self._stream(shape, tokens, self.finish or finish, string)
        headers = {"connection": "close"} if gone else {}
        if fault is not None and fault.after is None and fault.kind not in BEFORE:
            fault = Fault(fault.kind, fault.call, None)
        if fault is not None:
            headers |= {"content-encoding": "gzip"} if "gzip" in fault.kind else {}
            stream = broken(fault, stream, request, self.stall_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def _continues(self, body: Mapping[str, Any]) -> bool:
        """Whether thinking is closed at the end of the prompt."""
        if "messages" in body:
            if not body.get("continue_final_message") or self.strips:
                return False
            return "</think>" in str(body["messages"][-1].get("content"))
        prompt = body.get("prompt", "")
        text = self.vocabulary.decode(prompt) if prompt and isinstance(prompt[0], int) else str(prompt)
        return "</think>" in text.rpartition(HEADER)[2]

    def _tokens(
        self, body: Mapping[str, Any], continues: bool, *, parsed: bool
    ) -> tuple[list[Token], str, str | None]:
        script = Script(self.dialect, self.tag_cut, self.token_ids, self.answer_as_reasoning)
        made: list[Token] = []
        if not continues and (thoughts := self._thoughts(body)) is not None:
            made += script.thinking(thoughts)
        bound = body.get("response_format") or body.get("structured_outputs") or body.get("guided_json")
        schema = bool(bound) and bound != {"type": "text"}
        made += script.answering(
            self.structured if schema else self.continued if continues else self.answer, continues=continues
        )
        if self.tool is not None and (body.get("tools") or not parsed):
            made += script.calling(self.tool, parsed=parsed)
        made, string = stopped_at(made, body.get("stop"))
        tokens, finish = with_limit(made, body)
        return tokens, finish, string if finish != "length" else None

    def _thoughts(self, body: Mapping[str, Any]) -> Sequence[str] | None:
        if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False:
            return None
        thoughts = self.thinks(body) if self.thinks is not None else self.thoughts
        if self.lengths is not None:
            length = drawn_length(body, self.lengths)
            thoughts = [self.thoughts[n % len(self.thoughts)] for n in range(length)]
        for name in self.native_budgets:
            value: Any = body
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, int) and value >= 0:
                thoughts = thoughts[:value]
        return thoughts

    def _prompt_ids(self, body: Mapping[str, Any]) -> list[int]:
        if "messages" in body:
            opened = self.dialect == "opened_tags"
            return self.vocabulary.encode(self.vocabulary.prompt(body, opened=opened, strips=self.strips))
        prompt = body.get("prompt", "")
        return list(prompt) if isinstance(prompt, list) else self.vocabulary.encode(prompt)

    def _shape(self, body: Mapping[str, Any], path: str) -> Shape:
        ids = self._prompt_ids(body) if self.token_ids and body.get("return_token_ids") else None
        return Shape(
            body,
            path.endswith("/chat/completions"),
            ids,
            self.vocabulary.token,
            running=self.running_usage,
            final=self.final_usage,
            details=self.reasoning_details,
        )

    async def _stream(
        self, shape: Shape, tokens: Sequence[Token], finish: str, string: str | None
    ) -> AsyncIterator[bytes]:
        at = len(self.sent)
        self.sent.append(0)
        self.ended.append(False)
        yield shape.opening()
        if self.deltas is not None:
            for each in self.deltas:
                await asyncio.sleep(self.pause_s)
                yield shape.deltas(each if isinstance(each, list) else [(0, each)])
                self.sent[at] += 1
        else:
            for start in range(0, len(tokens), self.per_chunk):
                await asyncio.sleep(self.pause_s)
                if self.error_after == self.sent[at]:
                    yield b'data: {"error": {"message": "ctx too long", "code": 400}}\n\n'
                    return
                if self.cut_after == self.sent[at]:
                    yield b'data: {"choices": [{"in'
                    return
                some = tokens[start : start + self.per_chunk]
                self.sent[at] += len(some)
                for event in shape.pieces(some, self.sent[at]):
                    yield event
        if self.extra_delta is not None:
            yield shape.deltas([(0, self.extra_delta)])
        yield shape.closing(finish, string)
        yield shape.usage_event(self.sent[at])
        self.ended[at] = True
        yield b"data: [DONE]\n\n"


@contextmanager
def served(fake: FakeUpstream) -> Iterator[str]:
    """Serves `fake`, whose `refused` faults can then really close the listening socket."""
    with live_server(fake.app(), on_server=lambda stop: setattr(fake, "stop_listening", stop)) as base:
        yield base
