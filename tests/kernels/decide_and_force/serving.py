"""A made-up server whose requests are decided twice: by the kernel, and by the machine as the plugin uses it.

Requests enter, are preempted, resumed and end; slots are used again; drafts are accepted and refused; forced
tokens may be masked. What a token means depends on its number only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np
import torch

from desist.controller import Boundary, StopMachine
from desist.controller.core import Action, Control, Decision, Policy, StopReason
from desist.kernels.boundary_score.flags import Flag
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import (
    DecideState,
    Entry,
    Ring,
    SlotControl,
    SlotSettings,
    Verdict,
    decide,
)
from desist.kernels.rows import Rows, window_for

CLOSE, HALF = 99, 52  # HALF ends inside a character
SCORES = (0.1, 0.25, 0.5, 0.5, 0.75, 0.9, 0.97, math.nan)
HANDOFF_FROM = 200


def score_of(seed: int, n: int, token: int) -> float:
    """The score at row `n`, as float32: one of a few, so that ties with a threshold are common."""
    return float(np.float32(SCORES[hash((seed, n, token)) % len(SCORES)]))


def is_boundary(token: int) -> bool:
    return token % 7 == 0 and token < CLOSE


def opens_zone(token: int) -> bool:
    return token % 17 == 1 and token < CLOSE


def ends_zone(token: int) -> bool:
    return token % 9 == 2 and token < CLOSE and not opens_zone(token)


def of_zone(token: int) -> bool:
    return opens_zone(token) or ends_zone(token)


@dataclass
class Request:
    """One request and its stop machine. Row n has read the n-th generated token, from 1."""

    seed: int
    control: Control
    max_tokens: int | None
    handoff: list[int]
    prompt: int
    machine: StopMachine = field(init=False)
    ids: list[int] = field(default_factory=list)  # generated, the newest not yet read
    read: list[int] = field(default_factory=list)  # as the machine's side has read them, drafts too
    stop_at: int | None = None
    undone: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = StopMachine(
            self.control, max_tokens=self.max_tokens, min_answer_tokens=4, handoff_tokens=len(self.handoff)
        )

    def count(self, n: int) -> int:
        """Reasoning tokens among the first n that were read."""
        part = self.read[:n]
        return part.index(CLOSE) if CLOSE in part else len(part)

    def thinking(self) -> bool:
        return CLOSE not in self.read

    def zone(self, n: int) -> int:
        """The last row up to n whose token may open or close a zone; 0: none."""
        thinking = self.read[: self.count(n)]
        return max((at + 1 for at, token in enumerate(thinking) if of_zone(token)), default=0)

    def open_zone(self, n: int) -> bool:
        last = self.zone(n)
        return bool(last) and opens_zone(self.read[last - 1])

    def back_to(self, n: int) -> None:
        """Forget all rows after n, as `Tracked` does."""
        while self.undone and n < self.undone[-1][0]:
            self.stop_at = self.undone.pop()[1]
            self.machine.rewind(self.count(self.stop_at))
            self.machine.reinstate()
        if self.stop_at is not None and self.stop_at > n:
            self.stop_at = None
        if self.stop_at is None:
            self.machine.rewind(self.count(n))
        del self.read[n:]

    def take(self, token: int, *, held: bool) -> tuple[bool, Decision | None]:
        """Read one more row: whether it takes a stop back, and what is decided at it."""
        withdrawn = False
        n = len(self.read) + 1
        if self.stop_at is not None:
            place = n - self.stop_at - 1
            withdrawn = place < len(self.handoff) and token != self.handoff[place]
            if withdrawn:
                self.undone.append((n, self.stop_at))
                self.stop_at = None
                self.machine.withdraw()
        self.read.append(token)
        if self.stop_at is not None or not self.thinking():
            return withdrawn, None
        count = self.count(n)
        if is_boundary(token):
            index = sum(map(is_boundary, self.read[:count])) - 1
            decision = self.machine.at_boundary(
                Boundary(index, count, "cue"), score_of(self.seed, n, token), held=held
            )
        else:
            decision = self.machine.advance(count, held=held, whole=token != HALF)
        if decision.stops:
            self.stop_at = n
        return withdrawn, decision

    def forced(self) -> int:
        """The token after the newest row, or -1."""
        done = -1 if self.stop_at is None else len(self.read) - self.stop_at
        return self.handoff[done] if 0 <= done < len(self.handoff) else -1

    def locked(self) -> bool:
        return self.stop_at is not None and len(self.read) - self.stop_at >= len(self.handoff)

    def flags(self) -> Flag:
        """What the newest row's token meant."""
        token = self.read[-1]
        if not self.thinking():
            return Flag.WHOLE
        bits = Flag.THINKING | Flag.COUNTED
        if token != HALF:
            bits |= Flag.WHOLE
        if is_boundary(token):
            bits |= Flag.BOUNDARY
        return bits | Flag.ZONE if of_zone(token) else bits


class Server:
    """`slots` slots, `drafts` drafts a step. `step` raises AssertionError at the first row that differs."""

    def __init__(self, seed: int, *, slots: int, drafts: int, impl: Impl, device: str = "cpu") -> None:
        self.rng = random.Random(seed)
        self.seed, self.drafts, self.impl, self.device = seed, drafts, impl, device
        self.settings = SlotSettings(slots, handoff=12, locked=2, device=device)
        self.state = DecideState(slots, window_for(drafts), device)
        self.ring = Ring(1024, device)
        self.running: dict[int, Request] = {}
        self.free = list(range(slots))
        self.waiting: list[tuple[Request, Entry]] = []  # preempted: what is known after its last row
        self.made = 0
        self.rows = self.stops = self.withdrawals = self.refused = self.preempted = self.holds = 0

    def step(self) -> None:
        self._come_and_go()
        told: list[tuple[int, int, Request, bool, Decision | None, int, bool]] = []
        columns: list[tuple[int, int, int, int, int, int, int, float]] = []
        plans: dict[int, list[int]] = {}
        for slot in self.rng.sample(sorted(self.running), len(self.running)):
            one = self.running[slot]
            one.back_to(len(one.ids) - 1)
            known = max(0, len(one.ids) - 1 - self.rng.choice([0, 0, 1, 3]))
            hold = one.open_zone(known)
            self.settings.hold_off(slot, hold, one.prompt + known - 1)
            if self.rng.random() < 0.01 and one.machine.asked_at is None:
                one.machine.stop_now(position=one.count(len(one.read)))
                self.settings.ask(slot, one.count(len(one.read)))
            plans[slot] = [one.ids[-1], *(self._draft(one, place) for place in range(self.drafts))]
            shadow_before = one.machine.shadow
            for local, token in enumerate(plans[slot]):
                n = len(one.read) + 1
                zone_after = n if of_zone(token) and one.thinking() else one.zone(n - 1)
                held = hold or zone_after > known
                withdrawn, decision = one.take(token, held=held)
                flags = one.flags()
                zone = one.zone(n)
                columns.append((
                    slot, one.prompt + n - 1, token, local, int(flags), one.count(n),
                    one.prompt + zone - 1 if zone else -1, score_of(one.seed, n, token),
                ))  # fmt: skip
                shadowed = one.machine.shadow is not None and one.machine.shadow is not shadow_before
                shadow_before = one.machine.shadow
                told.append((slot, n, one, withdrawn, decision, one.forced(), one.locked()))
                if shadowed:
                    assert decision is not None
                    assert decision.action is Action.CONTINUE
        if not columns:
            return
        self._compare(columns, told)
        for slot, plan in plans.items():
            self._sample(slot, plan, [each for each in told if each[0] == slot])

    def _compare(self, columns: list[tuple[int, int, int, int, int, int, int, float]], told: list) -> None:  # type: ignore[type-arg]
        def column(place: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor([row[place] for row in columns], dtype=dtype, device=self.device)

        rows = Rows(*(column(place) for place in range(4)))
        decided = decide(
            rows, column(4, torch.uint8), column(5), column(6), column(7, torch.float32),
            self.settings, self.state, self.ring, impl=self.impl,
        )  # fmt: skip
        verdicts = [Verdict(bits) for bits in decided.verdict.tolist()]
        smoothed, forced, locked = (part.tolist() for part in decided[1:])
        for row, (slot, n, _, withdrawn, decision, must, lock) in enumerate(told):
            verdict = verdicts[row]
            where = f"seed {self.seed}, slot {slot}, row {n}: {verdict!r}, the machine says {decision}"
            assert (Verdict.WITHDRAWN in verdict) == withdrawn, where
            assert Verdict.LOST not in verdict, where
            action = decision.action if decision is not None else Action.CONTINUE
            assert (Verdict.STOP in verdict) == (action is Action.STOP), where
            assert (Verdict.HOLD in verdict) == (action is Action.HOLD), where
            if action is Action.STOP:
                rule = {StopReason.BUDGET: Verdict.BUDGET, StopReason.MANUAL: Verdict.ASKED}
                assert rule.get(decision.reason, Verdict.SCORE) in verdict, where
            if decision is not None and decision.index is not None and decision.score is not None:
                assert smoothed[row] == decision.score, f"{where}, smoothed {smoothed[row]}"
            assert (forced[row], locked[row]) == (must, lock), where
            self.rows += 1
            self.stops += action is Action.STOP
            self.holds += action is Action.HOLD
            self.withdrawals += withdrawn

    def _sample(self, slot: int, plan: list[int], told: list) -> None:  # type: ignore[type-arg]
        """Which drafts are taken, and the token after the last one."""
        one = self.running[slot]
        for place, (_, n, _, _, _, must, _) in enumerate(told):
            masked = must >= 0 and hash((one.seed, n, -7)) % 12 == 0
            token = self._next(one, n) if must < 0 or masked else must
            one.ids.append(token)
            if place + 1 < len(plan) and plan[place + 1] != token:
                self.refused += 1
                break

    def _next(self, one: Request, n: int) -> int:
        """The token that the model itself would draw after row n."""
        drawn = hash((one.seed, n)) % 103
        return CLOSE if drawn in (100, 101, 102) and n > 20 else min(drawn, CLOSE - 1)

    def _draft(self, one: Request, place: int) -> int:
        """A drafter that is often right, also about hand-offs."""
        n = len(one.ids) + place
        must = -1 if one.stop_at is None else n - one.stop_at
        if 0 <= must < len(one.handoff) and self.rng.random() < 0.5:
            return one.handoff[must]
        return self._next(one, n) if self.rng.random() < 0.6 else self.rng.randrange(CLOSE + 1)

    def _come_and_go(self) -> None:
        rng = self.rng
        for slot in list(self.running):
            one = self.running[slot]
            if len(one.ids) > 90 or rng.random() < 0.01:
                self._leave(slot)
            elif rng.random() < 0.03:
                one.back_to(len(one.ids) - 1)
                kept = self.state.kept(slot, one.prompt + len(one.read) - 1)
                assert kept is not None
                self.waiting.append((one, kept))
                self.preempted += 1
                self._leave(slot)
        while self.free and rng.random() < 0.7:
            slot = self.free.pop(rng.randrange(len(self.free)))
            if self.waiting and rng.random() < 0.6:
                one, kept = self.waiting.pop(rng.randrange(len(self.waiting)))
                self._enter(slot, one, kept)
            else:
                self._enter(slot, self._fresh(), Entry())

    def _leave(self, slot: int) -> None:
        del self.running[slot]
        self.state.leave(slot)
        self.free.append(slot)

    def _fresh(self) -> Request:
        rng = self.rng
        self.made += 1
        policy = Policy(
            lam=rng.choice([None, 0.5, 0.75, float(np.float32(0.9)), 0.97]),
            patience=rng.choice([1, 1, 2, 3]),
            warmup_tokens=rng.choice([0, 0, 5, 20]),
            ema=rng.choice([1.0, 1.0, 0.5, 0.3]),
        )
        control = Control(
            rng.choice(["active", "active", "active", "shadow", "off"]),
            policy,
            rng.choice([None, None, 0, 7, 30, 70]),
        )
        length = rng.randint(1, 12)
        handoff = [HANDOFF_FROM + place for place in range(length)]
        handoff[rng.randrange(length)] = CLOSE
        one = Request(
            rng.randrange(1 << 30), control, rng.choice([None, 40, 100]), handoff, rng.randint(1, 30)
        )
        one.ids.append(self._next(one, 0))
        return one

    def _enter(self, slot: int, one: Request, entry: Entry) -> None:
        self.running[slot] = one
        control, policy = one.control, one.control.policy
        rules = SlotControl(
            control.mode, policy.lam, policy.ema, policy.patience, policy.warmup_tokens,
            one.machine.soft_limit, one.machine.hard_limit, one.handoff, (7,),
        )  # fmt: skip
        self.settings.enter(slot, rules)
        if one.machine.asked_at is not None:
            self.settings.ask(slot, one.machine.asked_at)
        self.state.enter(slot, one.prompt + len(one.read) - 1, entry)
