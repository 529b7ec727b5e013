"""What the device keeps of the requests that it controls, by vLLM's own slots; and who is in which.

A request takes its slot in the first step in which it has a row of its own, so that nothing is kept for one
that only waits. What the host learns of it (its rules, a stop asked for, whether a hold-off zone is open) is
told to the slot without a wait. On preemption the slot's entries are put aside on the device, and put into
whatever slot the request gets when it comes back: entries are found by position, so the host need not know
at which one it was. Knows settings and positions; no rows and no decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from desist.controller.automaton import Standing
from desist.data.errors import ControlError
from desist.kernels.boundary_score import BoundaryState
from desist.kernels.decide_and_force import (
    DecideState,
    Entry,
    Ring,
    SlotControl,
    SlotSettings,
    Verdict,
)
from desist.kernels.decide_and_force.ring import LEAST
from desist.kernels.rows import window_for
from desist.proxy.engines.vllm.inside.device_probes import DeviceProbes
from desist.proxy.engines.vllm.inside.tracked import Tracked

__all__ = ["MOST_LOCKED", "DeviceSlots", "Steered", "rules_of"]

MOST_LOCKED = 4


def rules_of(one: Tracked) -> SlotControl:
    """The rules of a request now. After a failure it has none, but a hand-off that has begun goes on."""
    session = one.session
    locked = tuple(sorted(session.locked_ids))
    if one.failed:
        return SlotControl("off", handoff=one.handoff, locked=locked)
    policy, machine = session.control.policy, session.machine
    if policy.give_up is not None:
        raise ControlError("the device cannot give up; leave the request to the host.")
    return SlotControl(
        session.control.mode,
        policy.lam if policy.scorer in one.scoring.names else None,  # no score, no evidence
        policy.ema,
        policy.patience,
        policy.warmup_tokens,
        machine.soft_limit,
        machine.hard_limit,
        one.handoff,
        locked,
    )


@dataclass(slots=True, eq=False)
class Steered:
    """A request that the device controls. `start`: where its automaton stands after the prompt.

    `hold`, `known`: whether a zone was open after the token at position `known`, as the device was told.
    `loud`: its logits may be changed. `dead`: the host has lost track of it, and replays no more rows.
    """

    one: Tracked
    probes: DeviceProbes
    start: Standing
    rules: SlotControl
    hold: bool
    known: int
    slot: int | None = None
    aside: list[torch.Tensor] | None = None
    loud: bool = False
    dead: bool = False

    @classmethod
    def of(cls, one: Tracked, probes: DeviceProbes, start: Standing) -> Steered:
        hold = one.session.detector.zone_after(())
        made = cls(one, probes, start, rules_of(one), hold, one.prompt_tokens - 1)
        made.listen()
        return made

    def listen(self) -> None:
        """Once logits may be changed they may be until the end: a stop may be under way, unseen."""
        rules = self.rules
        self.loud = (
            self.loud
            or (rules.mode == "active" and rules.lam is not None)
            or rules.soft is not None
            or self.one.session.machine.asked_at is not None
        )


class DeviceSlots:
    """Entries, settings and ring of `slots` slots, for steps of up to `drafts` drafts a request.

    `handoff`: the most ids that a hand-off may have. No method waits for the device.
    """

    def __init__(self, slots: int, drafts: int, *, handoff: int, device: torch.device | str) -> None:
        self.window = window_for(drafts)
        self.count, self.device = slots, torch.device(device)
        self.read = BoundaryState(slots, self.window, device)
        self.decided = DecideState(slots, self.window, device)
        self.settings = SlotSettings(slots, handoff=handoff, locked=MOST_LOCKED, device=device)
        self.ring = Ring(max(LEAST, slots * (drafts + 1)), device)

    def has_room_for(self, one: Tracked) -> bool:
        """Whether the ids to be forced and locked fit into a slot."""
        most = self.settings.handoff.shape[1]
        return len(one.handoff) <= most and len(one.session.locked_ids) <= MOST_LOCKED

    def enter(self, steered: Steered, slot: int) -> None:
        """The request takes a slot: its first, or the one that it comes back to."""
        if steered.aside is None:
            position = steered.one.prompt_tokens - 1
            self.read.enter(slot, position, **steered.start._asdict())
            at_once = steered.one.stop_at == 0  # its first token was the hand-off's
            stopped = Entry(stop=position, rule=int(Verdict.BUDGET))
            self.decided.enter(slot, position, stopped if at_once else Entry())
            if steered.probes.stream is not None:
                steered.probes.stream.enter(slot, position)
        else:
            for entries, kept in zip(self._entries(steered), steered.aside, strict=True):
                entries[slot].copy_(kept)
            steered.aside = None
        steered.slot = slot
        self.settings.enter(slot, steered.rules, hold=steered.hold, known=steered.known)
        self._ask(steered)

    def put_aside(self, steered: Steered) -> None:
        """The request gives its slot up and will come back."""
        if steered.slot is not None:
            steered.aside = [entries[steered.slot].clone() for entries in self._entries(steered)]
            steered.slot = None

    def tell_rules(self, steered: Steered) -> None:
        """Other rules than before, or a stop that was asked for: they hold from the next step on."""
        rules = rules_of(steered.one)
        if rules != steered.rules:
            steered.rules = rules
            if steered.slot is not None:
                self.settings.change(steered.slot, rules)
        steered.listen()
        self._ask(steered)

    def tell_zone(self, steered: Steered, hold: bool, known: int) -> None:
        """Whether a zone was open after the token at position `known`."""
        if (hold, known) != (steered.hold, steered.known):
            steered.hold, steered.known = hold, known
            if steered.slot is not None:
                self.settings.hold_off(steered.slot, hold, known)

    def _ask(self, steered: Steered) -> None:
        asked_at = steered.one.session.machine.asked_at
        if steered.slot is not None and asked_at is not None:
            self.settings.ask(steered.slot, asked_at)

    def _entries(self, steered: Steered) -> Iterator[torch.Tensor]:
        """Everything that is kept by position, each [slots, ...]."""
        read, stream = self.read, steered.probes.stream
        yield from (read.position, read.automaton, read.count, read.periods, read.zone, self.decided.words)
        if stream is not None:
            yield from (stream.position, stream.h)
