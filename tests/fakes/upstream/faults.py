"""What can go wrong with an answer, and at which call and place of it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["BEFORE", "INSIDE", "Fault", "Kind", "broken", "early", "hang_up"]

#: Instead of an answer's beginning. `refused`: the server is gone, from this call on.
BEFORE = ("refused", "status", "reset", "kill", "stall", "html", "empty", "redirect", "garbage_gzip")
#: After `after` pieces. `end`: a well-formed end of the body, but neither finish_reason nor [DONE].
INSIDE = (
    "reset", "kill", "end", "done", "stall", "half_event", "half_character", "bad_utf8", "not_json",
    "error_event", "old_error_event", "plain_error_event", "cut_gzip",
)  # fmt: skip
Kind = Literal[
    "refused", "status", "reset", "kill", "stall", "html", "empty", "redirect", "garbage_gzip", "end", "done",
    "half_event", "half_character", "bad_utf8", "not_json", "error_event", "old_error_event",
    "plain_error_event", "cut_gzip", "gzip", "split_bytes",
]  # fmt: skip
_HTML = b"<!doctype html><html><body><h1>Bad gateway</h1></body></html>"
_SPOKEN: Mapping[str, Any] = {
    "error_event": {"error": {"message": "ctx too long", "type": "BadRequestError", "code": 400}},
    "old_error_event": {"object": "error", "message": "ctx too long", "type": "BadRequestError", "code": 400},
    "plain_error_event": {"error": "ctx too long"},
}


@dataclass(frozen=True)
class Fault:
    """Strikes at `call` (0 is the first completion asked for; "continuation"; None: all).

    `after`: pieces sent before it strikes; None: before the headers. `gzip` and `split_bytes` spoil nothing:
    a compressed body, and one whose bytes arrive one by one, characters in halves.
    """

    kind: Kind
    call: int | Literal["continuation"] | None = None
    after: int | None = None
    status: int = 503
    body: bytes = b'{"error": {"message": "no room", "type": "ServiceUnavailable", "code": 503}}'
    headers: Mapping[str, str] = field(default_factory=dict)

    def meets(self, call: int, continues: bool) -> bool:
        if self.kind == "refused" and isinstance(self.call, int):
            return call >= self.call
        return self.call is None or self.call == call or (self.call == "continuation" and continues)


def hang_up(request: Request, *, reset: bool) -> None:
    """Close the connection of `request` without another byte, by RST if `reset`."""
    transport = request.receive.__self__.transport  # type: ignore[attr-defined]
    if reset and (sock := transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def early(fault: Fault, request: Request, stall_s: float) -> Response | None:
    """The answer of a fault before the headers; None: go on (it has stalled)."""
    if fault.kind in ("refused", "reset", "kill"):
        hang_up(request, reset=fault.kind != "kill")
    elif fault.kind == "stall":
        await asyncio.sleep(stall_s)
        return None
    elif fault.kind == "html":
        return Response(_HTML, 200, media_type="text/html")
    elif fault.kind == "redirect":
        return Response(b"", 307, {"location": "http://127.0.0.1:9/elsewhere"})
    elif fault.kind == "garbage_gzip":
        return Response(b"no gzip at all", 200, {"content-encoding": "gzip"}, "text/event-stream")
    elif fault.kind == "status":
        return Response(fault.body, fault.status, dict(fault.headers))
    return Response(b"", 200, media_type="text/event-stream")


async def broken(
    fault: Fault, stream: AsyncIterator[bytes], request: Request, stall_s: float
) -> AsyncIterator[bytes]:
    """`stream`, one event an item, as it comes through the fault. Its first item is no piece."""
    packer = zlib.compressobj(wbits=31) if "gzip" in fault.kind else None
    seen, struck = -1, fault.after is None or fault.kind not in INSIDE
    async for event in stream:
        if not struck and fault.after is not None and seen >= fault.after:
            struck = True
            if fault.kind == "stall":
                await asyncio.sleep(stall_s)
            elif fault.kind == "bad_utf8":
                event = event.replace(b'": "', b'": "\xc3', 1)
            else:
                for last in _last_words(fault.kind, event):
                    yield last
                if fault.kind in ("reset", "kill", "cut_gzip"):
                    await asyncio.sleep(0.02)  # what was sent before arrives
                    hang_up(request, reset=fault.kind == "reset")
                return
        seen += 1
        if not event:
            continue
        if fault.kind == "split_bytes":
            for byte in event:
                yield bytes([byte])
                await asyncio.sleep(0)
            continue
        yield event if packer is None else packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
    if packer is not None:
        yield packer.flush()


def _last_words(kind: Kind, event: bytes) -> list[bytes]:
    if kind in _SPOKEN:
        return [b"data: " + json.dumps(_SPOKEN[kind]).encode() + b"\n\n", b"data: [DONE]\n\n"]
    return {
        "done": [b"data: [DONE]\n\n"],
        "half_event": [event[: len(event) // 2]],
        "half_character": [b'data: {"choices": [{"delta": {"content": "caf\xc3'],
        "not_json": [b"data: oops\n\n", b"data: [DONE]\n\n"],
    }.get(kind, [])
