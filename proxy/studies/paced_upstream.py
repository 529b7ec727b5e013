"""A fake OpenAI server that costs next to nothing: streams chunks at a fixed pace, or as fast as they go.

Run as a process of its own: `python -m desist.proxy.studies.paced_upstream`. Prints its port, then serves
until it is killed. Each chunk has the fields and the size that vLLM's have, and carries the time at which it
was written (CLOCK_MONOTONIC, ns: the same clock in all processes). Knows just enough HTTP to be called.

The model's name says how: "paced-10000-2000" writes a first chunk, and 2,000 ms later goes on with one each
10,000 us ("paced-0-2000": as fast as they go). Streams end at max_tokens, or when the caller goes; each
has its own phase of the pace.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from typing import Any, cast

__all__ = ["PacedStream", "main"]

_PHASES = 61  # streams begin at multiples of this part of the pace (a prime: they do not pair up)
_WORDS = (
    b"the sum of both numbers is larger than what was asked for so take it away again and look at how "
    b"many are left  first add apples then pears each box holds seven of them which makes a dozen "
    b"less five but that would be wrong  because half went to her brother who gave three back on "
    b"Monday before lunch now write this as an equation with  x for price per item multiply out "
    b"collect terms divide by two check against given total yes that fits well"
).split()
_BUFFER_BYTES = 32_768
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CARD = {
    "object": "list",
    "data": [{"id": "paced-10000-2000", "object": "model", "created": 1, "owned_by": "t"}],
}


class PacedStream(asyncio.Protocol):
    """One connection: any number of short requests, or one stream."""

    _count = 0

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._gap = 0.0
        self._limit: int | None = None
        self._next = 0.0
        self._tokens = 0
        self._paused = self._gone = False
        self._before = self._after = b""
        self._words = random.Random(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop registers only the base class

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._gap:
            self._flood()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if len(body) < length:
            return
        self._buffer = body[length:]
        if head.startswith(b"GET"):
            self._answer(json.dumps(_CARD).encode(), b"application/json")
        elif b"/tokenize" in head.partition(b"\r\n")[0]:
            self._answer(b'{"error": {"message": "not here", "code": 404}}', b"application/json", b"404 No")
        else:
            self._begin(json.loads(body[:length]))

    def _answer(self, body: bytes, kind: bytes, status: bytes = b"200 OK") -> None:
        assert self._transport is not None
        head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
        self._transport.write(head + body)

    def _begin(self, body: dict[str, Any]) -> None:
        _, _, how = str(body.get("model", "")).partition("-")
        pace, _, wait = how.partition("-")
        if not body.get("stream") or not pace.isdigit() or not wait.isdigit():
            self._answer(
                b'{"error": {"message": "streams only", "code": 400}}', b"application/json", b"400 No"
            )
            return
        assert self._transport is not None
        PacedStream._count += 1
        self._gap, self._limit = int(pace) / 1e6, body.get("max_completion_tokens") or body.get("max_tokens")
        choice: dict[str, Any] = {"index": 0, "delta": {"reasoning": "T@"}, "logprobs": None}
        choice |= {"finish_reason": None}
        if body.get("return_token_ids"):
            choice["token_ids"] = [31337]
        told: dict[str, Any] = {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion.chunk",
        }
        told |= {"created": 1_790_000_000, "model": body["model"], "choices": [choice]}
        if (body.get("stream_options") or {}).get("continuous_usage_stats"):
            told["usage"] = {"prompt_tokens": 11, "total_tokens": "@", "completion_tokens": "@"}
        before, _, after = json.dumps(told, separators=(",", ":")).partition("T@")
        self._before, self._after = f"data: {before}".encode(), f"{after}\n\n".encode()
        self._words = random.Random(PacedStream._count)
        opening = dict(
            told, choices=[dict(choice, delta={"role": "assistant", "content": ""}, token_ids=None)]
        )
        opening.pop("usage", None)
        self._transport.write(_HEAD + _framed(b"data: " + json.dumps(opening).encode() + b"\n\n"))
        self._write()
        if self._gap:
            phase = self._gap * (PacedStream._count * 23 % _PHASES) / _PHASES
            self._next = self._loop.time() + int(wait) / 1000 + phase
            self._loop.call_at(self._next, self._tick)
        else:
            # Short buffers: else megabytes wait in the kernel, and the figures are of another second.
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            self._transport.set_write_buffer_limits(_BUFFER_BYTES)
            self._loop.call_later(int(wait) / 1000, self._flood)

    def _tick(self) -> None:
        if self._gone:
            return
        self._write()
        self._next += self._gap
        self._loop.call_at(self._next, self._tick)

    def _flood(self) -> None:
        for _ in range(32):
            if self._paused or self._gone:
                return
            self._write()
        self._loop.call_soon(self._flood)

    def _write(self) -> None:
        assert self._transport is not None
        self._tokens += 1
        after = self._after
        if b'"@"' in after:
            total, count = str(self._tokens + 11).encode(), str(self._tokens).encode()
            after = after.replace(b'"@"', total, 1).replace(b'"@"', count, 1)
        if last := self._tokens == self._limit:
            after = after.replace(b'"finish_reason":null', b'"finish_reason":"length"')
        self._transport.write(
            _framed(b"%s%sT%d%s" % (self._before, self._text(), time.monotonic_ns(), after))
        )
        if last:
            self._gone = True
            self._transport.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            self._transport.close()

    def _text(self) -> bytes:
        """The next word, with sentences, paragraphs and now and then a cue, as reasoning has them."""
        word = b" " + self._words.choice(_WORDS)
        if self._tokens % 97 == 0:
            return word + b".\\n\\nWait,"
        return word + b"." if self._tokens % 13 == 0 else word


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(PacedStream, "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Serve on a free port of the loopback address, which is printed first."""
    from desist.proxy.lifecycle.event_loop import run

    run(_serve())


if __name__ == "__main__":
    main()
