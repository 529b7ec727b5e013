"""A scripted engine whose traces are scored, stopped as their control says, and audited where asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from desist.controller.core import Boundary, StopReason
from desist.controller.machine import StopMachine
from desist.proxy.engines.base import (
    Audited,
    Delta,
    Event,
    Finished,
    GenerationRequest,
    ScoredBoundary,
    Usage,
)
from tests.fakes.engine import FakeEngine

GAP = 10


@dataclass
class AuditedEngine(FakeEngine):
    """`traces`: scores of each request in turn. Where `lose(number)`, the stopped answer is another one."""

    traces: list[list[float]] = field(default_factory=list)
    lose: Callable[[int], bool] = lambda number: False
    audits_running: int = 0
    told: Callable[[Audited], None] | None = None

    def tell_audits(self, told: Callable[[Audited], None]) -> None:
        self.told = told

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        number = len(self.requests)
        self.requests.append(request)
        scores = self.traces[number % len(self.traces)]
        machine = StopMachine(request.control)
        seen = []
        for place, score in enumerate(scores):
            boundary = Boundary(place, GAP * (place + 1), "cue", "wait")
            decision = machine.at_boundary(boundary, score)
            seen.append(ScoredBoundary(place, boundary.position, "cue", "wait", {"probe": score}, decision))
            if decision.stops:
                break
        stop, whole = machine.stopped, GAP * (len(scores) + 1)
        answer = r"\boxed{5}" if stop is not None and self.lose(number) else r"\boxed{4}"
        yield Delta("content", answer)
        kept = whole if stop is None else stop.position
        reason = StopReason.NATURAL if stop is None else stop.reason
        yield Finished("stop", reason, Usage(7, kept, 3), stop, machine.shadow, tuple(seen))
        if request.audit and self.told is not None:
            told, extra = self.told, 0 if stop is None else whole - kept + 3
            asyncio.get_running_loop().call_soon(
                told, Audited(request.request_id, stop, answer, r"\boxed{4}", kept + 3, whole + 3, extra)
            )
