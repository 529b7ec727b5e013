"""Log lines as text or as JSON, one line each, and the line that every request leaves.

Knows records of Python's `logging`. A line holds no line ends or control characters of what it tells, and of
an unexpected error only its type and where it was raised: its message might repeat a prompt.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any

import msgspec
from starlette.types import Scope

from desist.data.errors import DesistError
from desist.proxy.errors import ApiError, UpstreamReply
from desist.proxy.settings import LogSettings
from desist.proxy.telemetry.record import RequestRecord

__all__ = ["JsonFormatter", "TextFormatter", "log_access", "one_line", "set_up_logs"]

_ACCESS = logging.getLogger("desist.access")
_FIELDS = "desist_fields"
_LONGEST = 2000
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {
    10: "\\n",
    13: "\\r",
    9: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def one_line(text: str) -> str:
    """The text without characters that end or colour a line, cut where it is very long."""
    text = text.translate(_ESCAPES)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _error(info: Any) -> tuple[str, list[str]]:
    """(what was raised, where: the innermost place last).

    The message is told for errors of our own only, not for those that repeat a server's or client's words.
    """
    kind, error, trace = info
    name = getattr(kind, "__name__", "error")
    if isinstance(error, (DesistError, OSError)) and not isinstance(error, (ApiError, UpstreamReply)):
        name = f"{name}: {one_line(str(error))}"
    return name, [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)]


class TextFormatter(logging.Formatter):
    """`LEVEL logger: message field=value ...`, in one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        words = [f"{record.levelname} {record.name}: {one_line(record.getMessage())}"]
        words += [f"{name}={one_line(str(value))}" for name, value in fields.items()]
        if record.exc_info and record.exc_info[0] is not None:
            what, where = _error(record.exc_info)
            words.append(f"[{what} at {' < '.join(reversed(where))}]")
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        for name, value in getattr(record, _FIELDS, {}).items():
            told[name] = one_line(value) if isinstance(value, str) else value
        if record.exc_info and record.exc_info[0] is not None:
            told["error"], told["where"] = _error(record.exc_info)
        return msgspec.json.encode(told).decode()


def set_up_logs(settings: LogSettings, stream: IO[str] | None = None) -> None:
    """Write the log lines of this process to `stream` (None: stderr), as `settings` say.

    Other packages are heard from warnings on, whatever the level: what they tell below is not ours to vet.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("desist").setLevel(settings.level.upper())
    _ACCESS.setLevel(logging.INFO if settings.access else logging.CRITICAL)


def log_access(scope: Scope, route: str, status: int, elapsed_s: float, record: RequestRecord) -> None:
    """The line of one request."""
    if not _ACCESS.isEnabledFor(logging.INFO):
        return
    fields = {
        "request_id": scope.get("desist.request_id", ""),
        "method": scope.get("method", ""),
        "route": route,
        "status": status,
        "duration_ms": round(elapsed_s * 1000, 3),
    }
    _ACCESS.info("request", extra={_FIELDS: fields | record.line()})
