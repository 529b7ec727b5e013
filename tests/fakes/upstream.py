"""A fake OpenAI-compatible server with knobs for dialect, latency and failures; remembers all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Dialect = Literal["reasoning", "reasoning_content", "both", "tags", "opened_tags"]


@dataclass
class FakeUpstream:
    """Thinks `thoughts`, answers `answer`; a continued request gets `continued` only. One token a chunk."""

    thoughts: tuple[str, ...] = ("First ", "add. ", "Then ", "check. ", "Wait, ", "again. ", "Done.")
    answer: tuple[str, ...] = ("It is ", "4.")
    continued: tuple[str, ...] = ("So it ", "is 4.")
    dialect: Dialect = "reasoning"
    pause_s: float = 0.0
    header_pause_s: float = 0.0
    running_usage: bool = True
    final_usage: bool = True
    reasoning_details: bool = False
    answer_as_reasoning: bool = False
    refuse: tuple[int, bytes, Mapping[str, str]] | None = None
    refuse_continuation: tuple[int, bytes] | None = None
    error_after: int | None = None
    cut_after: int | None = None
    streams: bool = True
    extra_delta: dict[str, Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "up", "object": "model", "max_model_len": 9}]})

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.header_pause_s)
        if self.refuse is not None:
            status, content, headers = self.refuse
            return Response(content, status, dict(headers))
        continues = bool(body.get("continue_final_message")) or "</think>" in str(body.get("prompt", ""))
        if continues and self.refuse_continuation is not None:
            return Response(self.refuse_continuation[1], self.refuse_continuation[0])
        chat = "messages" in body
        pieces = self._pieces(continues)
        if not self.streams:
            return JSONResponse(self._whole(pieces))
        return StreamingResponse(self._stream(body, pieces, chat), media_type="text/event-stream")

    def _pieces(self, continues: bool) -> list[dict[str, str]]:
        name = "reasoning_content" if self.dialect == "reasoning_content" else "reasoning"
        if continues:
            return [{name if self.answer_as_reasoning else "content": text} for text in self.continued]
        answer = [{"content": text} for text in self.answer]
        if self.dialect in ("tags", "opened_tags"):
            first = [] if self.dialect == "opened_tags" else [{"content": "<thi"}, {"content": "nk>\n"}]
            thoughts = [{"content": text} for text in self.thoughts]
            return [*first, *thoughts, {"content": "\n</th"}, {"content": "ink>\n\n"}, *answer]
        if self.dialect == "both":
            both = [{"reasoning": text, "reasoning_content": text} for text in self.thoughts]
            return [*both, *answer]
        return [{name: text} for text in self.thoughts] + answer

    def _usage(self, count: int) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": 11, "completion_tokens": count, "total_tokens": 11 + count}
        if self.reasoning_details:
            usage["completion_tokens_details"] = {"reasoning_tokens": len(self.thoughts)}
        return usage

    def _whole(self, pieces: list[dict[str, str]]) -> dict[str, Any]:
        message: dict[str, str] = {"role": "assistant"}
        for piece in pieces:
            for key, text in piece.items():
                message[key] = message.get(key, "") + text
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            "id": "u",
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage(len(pieces)),
        }

    async def _stream(
        self, body: dict[str, Any], pieces: list[dict[str, str]], chat: bool
    ) -> AsyncIterator[bytes]:
        at = len(self.sent)
        self.sent.append(0)
        self.ended.append(False)
        limit = body.get("max_completion_tokens", body.get("max_tokens", 10**9))
        options = body.get("stream_options", {})
        running = self.running_usage and options.get("continuous_usage_stats")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
            choice |= {"delta": delta} if chat else {"text": delta.get("content", "")}
            told = {"id": "u", "object": "x", "system_fingerprint": "fp", "choices": [choice]}
            if running:
                told["usage"] = self._usage(self.sent[at])
            return b"data: " + json.dumps(told).encode() + b"\n\n"

        if chat:
            yield chunk({"role": "assistant", "content": ""})
        for piece in pieces[:limit]:
            await asyncio.sleep(self.pause_s)
            if self.error_after == self.sent[at]:
                yield b'data: {"error": {"message": "ctx too long", "code": 400}}\n\n'
                return
            if self.cut_after == self.sent[at]:
                yield b'data: {"choices": [{"in'
                return
            self.sent[at] += 1
            yield chunk(piece)
        if self.extra_delta is not None:
            yield chunk(self.extra_delta)
        yield chunk({}, "stop" if len(pieces) <= limit else "length")
        if self.final_usage and options.get("include_usage"):
            yield (
                b"data: "
                + json.dumps({"choices": [], "usage": self._usage(self.sent[at])}).encode()
                + b"\n\n"
            )
        self.ended[at] = True
        yield b"data: [DONE]\n\n"
