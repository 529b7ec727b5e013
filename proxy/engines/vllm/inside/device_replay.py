"""The host's side of what the device has decided: the same tokens, a step or more later, in the same session.

The session finds the boundaries' kinds and texts, keeps the accounts and tells the events. It decides again,
from the device's scores and from what the device was told of hold-off zones, and must come to the same: the
device's decision stands, for its tokens were forced, but a request of which the two do not agree is decided
no more, is told so, and is counted. Knows copies and requests; launches nothing but what a slot is told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from desist.controller.core import Action, Decision, StopReason
from desist.kernels.decide_and_force import Record, Verdict
from desist.proxy.engines.vllm.inside.device_copies import StepCopy
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots, Steered
from desist.proxy.engines.vllm.inside.device_tables import Tables
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.tracked import Reading

__all__ = ["Here", "Replay", "Step"]

logger = logging.getLogger(__name__)


class Here(NamedTuple):
    """A request in a step, its number in the batch, its slot, and what the slot was told of zones then."""

    steered: Steered
    number: int
    slot: int | None
    hold: bool
    known: int


class Step(NamedTuple):
    """A step that ran. `clock`: when; `ends` [requests + 1]: where each request's rows begin."""

    clock: int
    copy: StepCopy
    here: Sequence[Here]
    ends: npt.NDArray[np.int32]


class Replay:
    """Reads steps in order. `lost` counts slots of which the device says so."""

    def __init__(self, runtime: Runtime, slots: DeviceSlots, tables: Tables) -> None:
        self._runtime, self._slots, self._tables = runtime, slots, tables
        self._since = 0
        self.rows = self.disagreements = self.lost = 0

    def read(self, step: Step) -> None:
        """Take in one step. An error in a request's rows ends the control of that request.

        Raises `LookupError` where decisions were written over before they were copied.
        """
        records, self._since, missing = step.copy.records(self._since)
        if missing:
            raise LookupError(f"{missing} decisions of the device were written over before they were copied")
        told = {(record.slot, record.position): record for record in records}
        columns, sampled = step.copy.columns, step.copy.sampled
        taken = step.copy.num_sampled.tolist()
        for here in step.here:
            steered, count = here.steered, taken[here.number]
            name = steered.one.request.request_id
            if steered.dead or count < 1 or self._runtime.tracked.get(name) is not steered.one:
                continue
            first, end = int(step.ends[here.number]), int(step.ends[here.number + 1])
            failures = self._runtime.errors
            with self._runtime.guarded("reading what the device has decided", (steered.one,)):
                rows = columns[:, first : min(first + count, end)]
                self._request(here, rows, told)
                self._runtime.commit(name, steered.one.read)
                position = int(rows[0, -1]) + 1
                self._look_ahead(steered, int(sampled[here.number][count - 1]), position, _last_zone(rows))
            if self._runtime.errors > failures:
                steered.dead = True
            if steered.one.failed:
                self._slots.tell_rules(steered)

    def _request(
        self, here: Here, rows: npt.NDArray[np.int32], told: Mapping[tuple[int, int], Record]
    ) -> None:
        """The rows of a request that were taken, in order."""
        decided = len(rows) > 2
        scores = rows[3:].view(np.float32)
        for place in range(rows.shape[1]):
            position, token = int(rows[0, place]), int(rows[1, place])
            if position - here.steered.one.prompt_tokens < here.steered.one.read:
                continue  # the prompt's last token, or one that was read before a preemption
            zone = int(rows[2, place]) if decided else -1
            held = here.hold or zone > here.known
            record = None if here.slot is None else told.get((here.slot, position))
            pair = (float(scores[0, place]), float(scores[1, place])) if decided else (math.nan, math.nan)
            self._row(here.steered, position, token, held, pair, record)

    def _row(
        self,
        steered: Steered,
        position: int,
        token: int,
        held: bool,
        pair: tuple[float, float],
        record: Record | None,
    ) -> None:
        one = steered.one
        self.rows += 1
        stopped_before = one.stop_at
        reading = one.take(position, token)
        withdrew = stopped_before is not None and one.stop_at is None
        if one.failed or (record is None and not withdrew and self._says_nothing(steered, reading)):
            return
        if record is not None and Verdict.LOST in record.verdict:
            self.lost += 1
            one.give_up("the device had lost the request's state")
            return
        decision, scores = None, {}
        if reading is not None:
            scores = self._scores(steered, reading, pair)
            decision = one.session.decide(reading.boundary, scores, held=held)
            if decision.stops and one.stop_at is None:
                one.stop_at = one.read
            if reading.boundary is not None:
                one.tell_boundary(reading.boundary, scores, decision, held=held)
            if decision.stops:
                one.tell_stop(decision)
        heard = one.session.control.policy.scorer in scores
        if not self._agree(steered, record, reading, decision, withdrew=withdrew, heard=heard):
            self._disagree(steered, record, decision, position)

    @staticmethod
    def _says_nothing(steered: Steered, reading: Reading | None) -> bool:
        """Whether no rule looks at this row: most tokens are plain words."""
        if reading is None:
            return True
        session = steered.one.session
        return reading.boundary is None and not session.machine.watches(session.detector.position)

    @staticmethod
    def _scores(steered: Steered, reading: Reading, pair: tuple[float, float]) -> dict[str, float]:
        """The scores of a boundary, none in mode "off"."""
        if reading.boundary is None or steered.one.mode == "off":
            return {}
        return {
            name: score for name, score in zip(("probe", "rom"), pair, strict=True) if not math.isnan(score)
        }

    @staticmethod
    def _agree(
        steered: Steered,
        record: Record | None,
        reading: Reading | None,
        decision: Decision | None,
        *,
        withdrew: bool,
        heard: bool,
    ) -> bool:
        """Whether the device's record of a row (None: no news) says what the session has decided.

        `heard`: the session had the score that its policy asks for; else the device may have smoothed one
        that decides nothing.
        """
        said = Verdict(0) if record is None else record.verdict
        action = Action.CONTINUE if decision is None else decision.action
        if (
            (Verdict.WITHDRAWN in said) != withdrew
            or (Verdict.STOP in said) != (action is Action.STOP)
            or (Verdict.HOLD in said) != (action is Action.HOLD)
        ):
            return False
        at_boundary = reading is not None and reading.boundary is not None
        if record is None or not at_boundary or decision is None:
            return not at_boundary and (record is None or bool(said & (Verdict.STOP | Verdict.WITHDRAWN)))
        session = steered.one.session
        if record.count != session.detector.position:
            return False
        asked = session.machine.asked_at is not None
        by_budget = decision.reason is StopReason.BUDGET
        if action is not Action.CONTINUE and not asked and (Verdict.BUDGET in said) != by_budget:
            return False
        return asked or not heard or decision.score == record.smoothed

    def _disagree(
        self, steered: Steered, record: Record | None, decision: Decision | None, position: int
    ) -> None:
        self.disagreements += 1
        one = steered.one
        said = None if record is None else record.verdict
        if self.disagreements <= 10 or self.disagreements % 1000 == 0:
            logger.error(
                "desist: at position %d the device says %r, the host %r (disagreement %d)",
                position, said, decision, self.disagreements,
            )  # fmt: skip
        if said is not None and Verdict.STOP in said:
            one.stop_at = one.read  # the hand-off is in the tokens that come
        elif decision is not None and decision.stops:
            one.stop_at = None
        one.give_up("device and host did not decide alike")

    def _look_ahead(self, steered: Steered, newest: int, position: int, zone: int) -> None:
        """Say whether a zone is open after the newest token, which no row has read yet, if that is news."""
        one = steered.one
        if one.failed or one.idle:
            return
        if not (steered.hold or zone > steered.known or self._tables.may_open(newest)):
            return
        upcoming: Sequence[int] = (newest,)
        if one.stop_at is not None:
            place = one.read - one.stop_at
            if place >= len(one.handoff) or newest == one.handoff[place]:
                return
            upcoming = (*one.handoff[:place], newest)  # the stop is about to be taken back
        self._slots.tell_zone(steered, one.session.detector.zone_after(upcoming), position)


def _last_zone(rows: npt.NDArray[np.int32]) -> int:
    """The last token that may have opened a zone, as of a request's last row."""
    return int(rows[2, -1]) if len(rows) > 2 else -1
