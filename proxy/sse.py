"""Server-sent events: a parser for byte chunks cut anywhere, and a writer.

Knows the event-stream format of the HTML standard and the `[DONE]` mark of OpenAI streams. Does not know
what the data means: it stays bytes, so that nothing is decoded twice.
"""

from __future__ import annotations

from typing import NamedTuple

from desist.data.errors import UpstreamError

__all__ = ["DONE", "PING", "ServerSentEvent", "SseParser", "write_event"]

DONE = b"[DONE]"
PING = b": ping\n\n"
_MAX_EVENT_BYTES = 16 * 2**20


class ServerSentEvent(NamedTuple):
    """One event. `data` is the concatenation of its data lines, joined by newlines."""

    data: bytes
    event: str = "message"
    id: str | None = None

    @property
    def done(self) -> bool:
        return self.data.strip() == DONE


def write_event(data: bytes, event: str | None = None) -> bytes:
    """The wire form of one event. Line ends inside `data` become several data lines."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    if b"\n" not in data and b"\r" not in data:
        return head + b"data: " + data + b"\n\n"
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


class SseParser:
    """Incremental parser: `feed` chunks, get the events they complete. Any cutting gives the same events.

    Lines may end in LF, CRLF or CR; comments, unknown fields and a byte order mark are skipped. An event
    without its blank line at the end of the stream is dropped, as the standard says (`pending` tells).
    """

    def __init__(self, max_event_bytes: int = _MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id: str | None = None
        self._after_cr = False
        self._at_start = True

    @property
    def pending(self) -> bool:
        """Whether the stream, if it ended here, would end inside an event."""
        return bool(self._data) or bool(self._line.strip())

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes, in order.

        Raises `UpstreamError` (502) if one event is larger than `max_event_bytes`.
        """
        if self._is_one_event(chunk):
            self._at_start = False
            return [ServerSentEvent(chunk[6:-2], "message", self._id)]
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if not chunk:
            return []
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerSentEvent] = []
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            self._take(line, events)
        self._line += rest
        if self._size + len(self._line) > self._max:
            raise UpstreamError(
                f"an event of the upstream stream exceeds {self._max} bytes. Check that the upstream URL "
                "points at an OpenAI-compatible server.",
                502,
            )
        return events

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether a chunk is what nearly every read gives: one event of one data line."""
        return (
            chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2
            and not (self._line or self._data or self._event or self._after_cr)
            and b"\r" not in chunk
            and len(chunk) <= self._max
        )

    def _take(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(ServerSentEvent(b"\n".join(self._data), self._event or "message", self._id))
            self._data, self._event, self._size = [], "", 0
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
