"""A slow OpenAI-compatible server that notes when its callers hang up: silent, then a chunk at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SlowUpstream"]

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class SlowUpstream:
    """Reasons in `chunks` pieces and answers in one. All pauses in seconds; `left`: when each unfinished
    call was hung up on."""

    headers_after_s: float = 0.0
    first_after_s: float = 0.0
    every_s: float = 0.1
    continued_after_s: float = 0.0
    chunks: int = 100
    refuse: tuple[int, bytes] | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    begun: int = 0
    left: list[float] = field(default_factory=list)

    @contextmanager
    def served(self) -> Iterator[str]:
        """The base address while it runs in a thread."""
        ready, stop, ports = threading.Event(), asyncio.Event(), list[int]()
        loops: list[asyncio.AbstractEventLoop] = []

        async def main() -> None:
            server = await asyncio.start_server(self._call, "127.0.0.1", 0)
            ports.append(server.sockets[0].getsockname()[1])
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()
            server.close()

        thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join(10)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        body = json.loads(await reader.readexactly(length)) if length else {}
        if not head.startswith(b"post") or b"/completions" not in head:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        self.calls.append(body)
        work = asyncio.ensure_future(self._write(body, b"chat/completions" in head, writer))
        gone = asyncio.ensure_future(reader.read())  # a caller that has asked sends no more
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.left.append(time.monotonic())
            work.cancel()
        writer.close()

    async def _write(self, body: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        continues = "</think>" in json.dumps(body)
        await asyncio.sleep(self.continued_after_s if continues else self.headers_after_s)
        if self.refuse is not None:
            status, content = self.refuse
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%s" % (status, len(content), content))
            return
        writer.write(_HEAD)
        await asyncio.sleep(0 if continues else self.first_after_s)
        deltas = (
            [{"content": "It is 4."}]
            if continues
            else [*[{"reasoning": "word. "}] * self.chunks, {"content": "4."}]
        )
        for number, delta in enumerate([*deltas, {}]):
            choice = {"index": 0, "finish_reason": "stop" if number == len(deltas) else None}
            choice |= {"delta": delta} if chat else {"text": delta.get("content", "")}
            told = {
                "id": f"up-{len(self.calls)}",
                "created": len(self.calls),
                "model": "up",
                "choices": [choice],
            }
            data = b"data: " + json.dumps(told).encode() + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            self.begun += 1
            await asyncio.sleep(self.every_s)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
