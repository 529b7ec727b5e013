"""The requests that the device controls: who they are, what a step does for them, when the host hears.

A step goes find_boundaries, mlp_score, stream_score, decide, force, and copies out what was decided; nothing
in it waits for the device. The host reads the copies `lag` steps later: 0 where a step is only scheduled when
the tokens of the last one are known, 1 under async scheduling. So it is always the same steps that it knows,
on each rank of a tensor-parallel group, however fast it is.

The device's are the requests that enter with probes that the kernels take, with a hand-off that a slot has
room for, and with a policy that does not give up: the kernels have one threshold. All others in the batch are
the host's, whose rows it then reads.

What the host knows of hold-off zones it tells the slots then. Without async scheduling and drafts it knows
each row's token before the row is decided at, and decisions are those of the host's own path. Otherwise a
token that the host has not seen and that may open a zone counts as having opened it, and a zone that such a
token closes stays open: a stop is never made on missing evidence. It waits for the first boundary that no
such token stands just before.

Two things differ from the host's own path. After a hand-off that was taken back (a masked token) a streaming
probe has read the hand-off's tokens too, which the host's passes over. And thinking that is opened again in
the answer, although its tag was locked (a grammar that allows nothing else), is not closed again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from desist.data.errors import ControlError
from desist.proxy.engines.vllm.inside.device_copies import StepCopy
from desist.proxy.engines.vllm.inside.device_probes import DeviceProbes, Kernels
from desist.proxy.engines.vllm.inside.device_replay import Here, Replay, Step
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots, Steered
from desist.proxy.engines.vllm.inside.device_step import Decisions, DeviceStep, Wanted, live
from desist.proxy.engines.vllm.inside.device_tables import Tables
from desist.proxy.engines.vllm.inside.runtime import Force, Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring, TapRows
from desist.proxy.engines.vllm.inside.tracked import Forced, Tracked

__all__ = ["DevicePath"]

logger = logging.getLogger(__name__)


class DevicePath:
    """Controls requests of one engine on its device. Fail-open: an error ends the control of the requests
    that it concerns, and those whose hand-off has begun are finished by the host."""

    def __init__(
        self, runtime: Runtime, kernels: Kernels, tables: Tables, slots: DeviceSlots, *, lag: int = 0
    ) -> None:
        self.requests: dict[str, Steered] = {}
        self.firsts: list[Force] = []
        self.replay = Replay(runtime, slots, tables)
        self._runtime, self._tables, self._slots = runtime, tables, slots
        self._step = DeviceStep(kernels, tables.automaton, slots)
        self._lag, self._clock = lag, 0
        self._steps: deque[Step] = deque()
        self._probes: dict[Scoring, DeviceProbes | None] = {}
        self._here: list[Here] = []
        self._columns: torch.Tensor | None = None
        self._decisions: Decisions | None = None
        self._decided = False
        self._cap = runtime.cap

    def begin(self, preempted: Iterable[str] | None = None) -> None:
        """A step is about to run: hear of those before it, and make room for what takes others' slots."""
        self._clock += 1
        while self._steps and self._steps[0].clock < self._clock - self._lag:
            self._hear()
        if self._cap != self._runtime.cap:  # lowered by another thread, while there were no requests
            self.tell()
        with self._guarded("putting requests aside"):
            for name in preempted or ():
                if (steered := self.requests.get(name)) is not None:
                    self._slots.put_aside(steered)

    def settle(self) -> None:
        """Hear of all steps that ran, waiting for them: only when somebody gives a command."""
        while self._steps:
            self._hear()

    def tell(self) -> None:
        """Rules may have changed, or a stop may have been asked for. Call `settle` before they do."""
        self._cap = self._runtime.cap
        with self._guarded("telling the device of a command"):
            for steered in self.requests.values():
                steered.one.hear()
                self._slots.tell_rules(steered)

    def adopt(self, request_id: str) -> None:
        """Take a request that has just entered, or has come back, if the device can control it."""
        one, known = self._runtime.tracked.get(request_id), self.requests.get(request_id)
        if known is not None and known.one is one:
            return
        self.requests.pop(request_id, None)
        if one is None or one.failed or one.read or not one.prompt_tokens:
            return
        probes = self.probes_for(one.scoring)
        if probes is None or not self._slots.has_room_for(one):
            return
        if one.session.control.policy.give_up is not None:
            return
        try:
            start = self._tables.found.state_of(one.session.detector)
        except ControlError as error:
            logger.info("desist: a request is left to the host: %s", error)
            return
        with torch.inference_mode():
            self.requests[request_id] = Steered.of(one, probes, start)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Requests have ended."""
        for request_id in request_ids:
            self.requests.pop(request_id, None)

    def step(self, batch: Any, taps: TapRows) -> set[int]:
        """Decide at the rows of this step; the slots whose logits may have to be changed.

        `firsts` are then the first tokens that are to be forced: a row counts only at its position.
        """
        self._forget()
        concerned = [self.requests[name] for name in batch.req_ids if name in self.requests]
        loud: set[int] = set()
        failures = self._runtime.errors
        with self._guarded("a step on the device", [steered.one for steered in concerned]):
            loud = self._launch(batch, taps)
        if self._runtime.errors > failures:
            self._forget()
            self._release(concerned)
            return set()
        return loud

    def force(self, logits: torch.Tensor, context: Any) -> None:
        """Within vLLM's sampler: change rows of logits, all of the step's or a part of them."""
        if self._decisions is not None:
            self._step.force(logits, self._decisions, context)

    def sampled(self, batch: Any, sampled: torch.Tensor, num_sampled: torch.Tensor) -> None:
        """The sampler is through: [requests, 1 or more] ids and how many of them count, on the device."""
        if self._here and self._columns is not None:
            with self._guarded("copying decisions", [here.steered.one for here in self._here]):
                ring = self._slots.ring if self._decided else None
                copy = StepCopy(self._columns, ring, sampled, num_sampled)
                self._steps.append(Step(self._clock, copy, tuple(self._here), batch.cu_num_logits_np))
        self._forget()

    def _launch(self, batch: Any, taps: TapRows) -> set[int]:
        wanted: list[Wanted] = []
        loud: set[int] = set()
        for number, name in enumerate(batch.req_ids):
            steered = self.requests.get(name)
            if steered is None:
                continue
            slot, first = int(batch.idx_mapping_np[number]), int(batch.cu_num_logits_np[number])
            count = live(batch, number, steered.one.prompt_tokens)
            if not count and steered.one.stop_at == 0:  # no reasoning at all: the first token is forced
                one, last = steered.one, steered.one.prompt_tokens - 1
                self.firsts.append(Force(first, slot, last, Forced(one.handoff[0])))
                loud.add(slot)
            if count and not steered.one.idle:
                if steered.slot != slot:
                    self._slots.enter(steered, slot)
                if steered.one.failed:
                    self._slots.tell_rules(steered)
                rom = steered.one.session.control.policy.scorer == "rom"
                wanted.append(Wanted(slot, first, first + count, steered.probes, rom))
                if steered.loud:
                    loud.add(slot)
            self._here.append(Here(steered, number, slot, steered.hold, steered.known))
        if not self._here:
            return loud
        position, token = self._step.rows_of(batch)
        if not wanted:
            self._columns = torch.stack((position, token))
            return loud
        decisions, self._columns = self._step.decide(batch, wanted, taps, position, token)
        self._decided = True
        self._decisions = decisions if loud else None
        return loud

    def _hear(self) -> None:
        try:
            step = self._steps.popleft()
        except IndexError:  # a command came while the engine was idle, and the engine is so no more
            return
        with self._guarded("hearing of a step", [here.steered.one for here in step.here]):
            self.replay.read(step)

    def _release(self, concerned: Iterable[Steered]) -> None:
        """After an error: the host takes over, to finish hand-offs that have begun."""
        self.settle()
        for steered in concerned:
            if not steered.dead:
                self.requests.pop(steered.one.request.request_id, None)

    def probes_for(self, scoring: Scoring) -> DeviceProbes | None:
        """The probes of a request that enters with `scoring`; None where the kernels do not take them."""
        if scoring not in self._probes:
            slots = self._slots
            used = {steered.probes.scoring for steered in self.requests.values()}
            self._probes = {each: probes for each, probes in self._probes.items() if each in used}
            with torch.inference_mode():
                self._probes[scoring] = DeviceProbes.of(scoring, slots.count, slots.window, slots.device)
        return self._probes[scoring]

    def warm_up(self, hidden: torch.Tensor, vocabulary: int, counts: Iterable[int]) -> None:
        """Have the kernels compiled before the first request. See `DeviceStep.warm_up`."""
        with self._guarded("warming up"):
            probes = self.probes_for(self._runtime.scoring)
            if probes is not None:
                self._step.warm_up(probes, hidden, vocabulary, counts)

    def _forget(self) -> None:
        self.firsts = []
        self._here, self._columns, self._decisions, self._decided = [], None, None, False

    @contextmanager
    def _guarded(self, what: str, concerned: Iterable[Tracked] = ()) -> Iterator[None]:
        with self._runtime.guarded(what, concerned), torch.inference_mode():
            yield
