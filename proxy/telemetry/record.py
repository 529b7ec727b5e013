"""What is noted of one request while it is served, for its log line, its metrics and its headers.

Names, counts and times only: never a text, a key or an id of a user. Does not write anything itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

__all__ = ["RequestRecord", "record_of"]

_COUNTS = ("reasoning_tokens", "answer_tokens", "forced_tokens", "rewound_tokens")


@dataclass(slots=True)
class RequestRecord:
    """Filled in on the way. Times are `clock` seconds; `began`: when the request came in.

    `waited_s`: for a place in the queue. `handed_at`: when its generation began. `model` and `mode` stay
    empty for requests that generate nothing.
    """

    clock: Callable[[], float] = time.perf_counter
    began: float = field(init=False)
    handed_at: float | None = None
    first_text_at: float | None = None
    waited_s: float = 0.0
    model: str = ""
    mode: str = ""
    tenant: str = ""
    stream: bool = False
    choices: int = 0
    stop_reasons: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def accepted(self, model: str, mode: str, tenant: str, *, stream: bool, choices: int) -> None:
        """The request was understood and its control is resolved."""
        self.model, self.mode, self.tenant = model, mode, tenant
        self.stream, self.choices = stream, choices

    def handed_on(self, waited_s: float = 0.0) -> None:
        """Its generation begins now, after `waited_s` seconds for a place."""
        self.waited_s, self.handed_at = waited_s, self.clock()

    def wrote(self) -> None:
        """A text goes to the client now."""
        if self.first_text_at is None:
            self.first_text_at = self.clock()

    def ended(self, told: Mapping[str, Any]) -> None:
        """One choice is over. `told`: its `desist` object."""
        self.stop_reasons.append(str(told["stop_reason"]))
        for name in _COUNTS:
            self.tokens[name] = self.tokens.get(name, 0) + int(told.get(name) or 0)

    @property
    def generated(self) -> int:
        """Tokens of all choices, thrown away ones too."""
        return sum(self.tokens.values())

    @property
    def overhead_s(self) -> float | None:
        """Seconds in the proxy before the generation began, waits for a place aside; None: it never did."""
        return None if self.handed_at is None else max(0.0, self.handed_at - self.began - self.waited_s)

    @property
    def overhead_ms(self) -> float | None:
        """As `overhead_s`, in milliseconds rounded to microseconds."""
        return None if self.overhead_s is None else round(self.overhead_s * 1000, 3)

    def line(self) -> dict[str, Any]:
        """The fields of its log line; those that say nothing are left out."""
        told: dict[str, Any] = {
            "model": self.model,
            "mode": self.mode,
            "tenant": self.tenant,
            "stop_reason": ",".join(dict.fromkeys(self.stop_reasons)),
            **self.tokens,
            "overhead_ms": self.overhead_ms,
        }
        if self.waited_s:
            told["queue_ms"] = round(self.waited_s * 1000, 3)
        if self.model:
            told |= {"stream": self.stream, "choices": self.choices}
        return {name: value for name, value in told.items() if value not in ("", None)}


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request of an ASGI scope, made if there is none yet."""
    record = scope.get("desist.record")
    if not isinstance(record, RequestRecord):
        record = scope["desist.record"] = RequestRecord()
    return record
