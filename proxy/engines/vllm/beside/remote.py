"""Probes in the proxy: hidden states of boundaries in, scores and decisions out (`decide: proxy`).

Knows streamed boundaries, scorers and the stop machine; no sockets, no tensors. Scoring runs in a thread of
its own, all that waits in one call. A decision that comes late, or is lost, changes nothing: the trace runs
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, cast, get_args

from desist.controller import Boundary, Control, Decision, StopMachine
from desist.controller.core import Mode
from desist.data.errors import ControlError
from desist.data.schema import BoundaryKind
from desist.proxy.engines.vllm.beside.counters import VllmCounters
from desist.proxy.engines.vllm.wire import Closed, Hello, Identity, Scored, StopNow, Stopped

__all__ = ["BoundaryScorer", "Remote", "Ward", "cap_of"]

logger = logging.getLogger(__name__)


class BoundaryScorer(Protocol):
    """A probe on streamed hidden states."""

    def scores(self, rows: Sequence[tuple[bytes, str | None]]) -> Sequence[float]:
        """Scores of rows, each with the name of its float type."""

    def warm_up(self) -> None:
        """Make the next call as fast as all later ones, in the thread that will make it."""


@dataclass(slots=True, eq=False)
class Ward:
    """One request whose boundaries come to the proxy. `scores` and `decisions` are by boundary index.

    `scorers` stay the same for its whole life. `sent`: the boundary at which a stop was sent. `failure`: why
    no more is decided.
    """

    identity: Identity
    machine: StopMachine | None
    scorers: Mapping[str, BoundaryScorer]
    scores: dict[int, Mapping[str, float]] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    sent: Scored | None = None
    failure: str | None = None
    over: bool = False

    @property
    def shadow(self) -> Decision | None:
        """The first stop that shadow mode would have made."""
        found = None if self.machine is None else self.machine.shadow
        return None if found is None else replace(found, certified=False)


class Remote:
    """Scores what is streamed and, where `decides`, sends stops.

    `scorers`: by score name. `send` hands a command to the engine without waiting for its answer; False if
    that was not possible. `waiting`: boundaries that may wait; more are passed over, their requests are told.
    """

    def __init__(
        self,
        scorers: Mapping[str, BoundaryScorer],
        *,
        decides: bool,
        send: Callable[[StopNow], bool],
        counters: VllmCounters,
        waiting: int = 4096,
        cap: Mode = "active",
    ) -> None:
        self._scorers = dict(scorers)
        self._decides, self._send, self._counters = decides, send, counters
        self._limit, self._cap = waiting, cap
        self._waiting: deque[tuple[Ward, Scored, bytes]] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="desist-probe")
        self._task: asyncio.Task[None] | None = None
        self._wards: dict[Identity, Ward] = {}

    @property
    def names(self) -> frozenset[str]:
        """The scores that are computed here."""
        return frozenset(self._scorers)

    def use(self, scorers: Mapping[str, BoundaryScorer]) -> None:
        """Score new requests with these, too; requests that run keep what they began with."""
        self._scorers = {**self._scorers, **scorers}

    def start(self) -> None:
        """Begin to score. Call in the event loop that uses it."""
        for scorer in self._scorers.values():
            self._thread.submit(scorer.warm_up)
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def watch(self, identity: Identity, control: Control) -> Ward:
        """Begin to follow a request. The budget is the engine's matter, so it is left out here."""
        machine = StopMachine(replace(control, budget=None)) if self._decides else None
        if machine is not None:
            machine.cap(self._cap)
        ward = self._wards[identity] = Ward(identity, machine, self._scorers)
        policy = control.policy
        scored = self._decides and control.mode != "off" and policy.lam is not None
        if scored and policy.scorer not in self._scorers:
            ward.failure = f"the policy decides by scorer '{policy.scorer}', which the proxy does not compute"
        return ward

    def limit(self, cap: Mode) -> None:
        """The kill switch. Raising the cap is for new requests."""
        self._cap = cap
        for ward in self._wards.values():
            if ward.machine is not None:
                ward.machine.cap(cap)

    def take(self, ward: Ward, event: Scored) -> None:
        """A boundary has come. Never waits."""
        if event.hidden is None or ward.over:
            return
        self._counters.streamed(event.dtype, len(event.hidden))
        if len(self._waiting) >= self._limit:
            ward.failure = f"{self._limit} boundaries wait for the proxy's probe (vllm.waiting)"
            return
        self._waiting.append((ward, event, event.hidden))
        self._wake.set()

    def settle(
        self, ward: Ward, stopped: Stopped | None, closed: Closed | None, *, left: bool = False
    ) -> None:
        """The request is over: count what became of its decision, and forget it. More than once is fine.

        `left`: the client did not wait for the end.
        """
        if ward.over:
            return
        ward.over = True
        if self._wards.get(ward.identity) is ward:
            del self._wards[ward.identity]
        if ward.sent is None:
            if ward.failure is not None:
                self._counters.decided("failed")
            return
        told = stopped.decision if stopped is not None else closed.decision if closed is not None else None
        if told is not None and told.index == ward.sent.index and told.reason not in ("budget", "manual"):
            self._counters.decided("in_time", stopped.tokens - ward.sent.tokens if stopped else None)
        else:
            known = stopped is not None or closed is not None or left
            self._counters.decided("late" if known else "lost")

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = [item for item in self._waiting if not item[0].over]
            self._waiting.clear()
            if not batch:
                continue
            try:
                found = await loop.run_in_executor(self._thread, _score, batch)
            except Exception as error:
                logger.exception("the probe in the proxy failed; the requests concerned run on unstopped")
                for ward, _, _ in batch:
                    ward.failure = f"the probe in the proxy failed: {type(error).__name__}: {error}"[:200]
                continue
            for (ward, event, _), scores in zip(batch, found, strict=True):
                ward.scores[event.index] = scores
                self._decide(ward, event, scores)

    def _decide(self, ward: Ward, event: Scored, scores: Mapping[str, float]) -> None:
        machine = ward.machine
        # Once a stop was sent, or the engine has stopped by itself, there is nothing more to decide.
        if machine is None or ward.over or ward.sent is not None or event.decision.action == "stop":
            return
        boundary = Boundary(event.index, event.position, cast(BoundaryKind, event.kind), event.text)
        score = scores.get(machine.control.policy.scorer)
        try:
            decision = machine.at_boundary(boundary, score, held=event.held)
        except ControlError as error:  # boundaries out of order: the engine was restarted
            ward.failure = str(error)
            return
        # The hand-off will stand some tokens after the boundary; the certificate is for one right behind it.
        ward.decisions[event.index] = decision = replace(decision, certified=False)
        if not decision.stops:
            return
        identity = event.identity
        command = StopNow(
            f"{identity.key}#{event.index}",
            identity.key,
            identity,
            str(decision.reason),
            decision.index,
            decision.score,
        )
        if self._send(command):
            ward.sent = event
        else:
            self._counters.decided("lost")
            machine.withdraw()  # tried again at the next boundary


def cap_of(hello: Hello) -> Mode:
    """The highest mode that the engine allows now."""
    return cast(Mode, hello.cap) if hello.cap in get_args(Mode) else "shadow"


def _score(batch: Sequence[tuple[Ward, Scored, bytes]]) -> list[dict[str, float]]:
    """The scores of each boundary by name, one call for each scorer. Runs in the scoring thread."""
    found: list[dict[str, float]] = [{} for _ in batch]
    places: dict[tuple[str, BoundaryScorer], list[int]] = {}
    for place, (ward, _, _) in enumerate(batch):
        for named in ward.scorers.items():
            places.setdefault(named, []).append(place)
    for (name, scorer), among in places.items():
        rows = [(batch[place][2], batch[place][1].dtype) for place in among]
        for place, score in zip(among, scorer.scores(rows), strict=True):
            found[place][name] = score
    return found
