"""Random steps, settings and states to try `decide_and_force` with, and outputs that start as rubbish."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.choice import Impl
from desist.kernels.decide_and_force import (
    Decided,
    DecideState,
    Entry,
    Ring,
    SlotControl,
    SlotSettings,
    Verdict,
    decide,
)
from desist.kernels.rows import IDLE, Rows
from tests.kernels.poison import poisoned

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMPLS: tuple[Impl, ...] = ("torch", "triton")
VOCABULARY = 12

PLAIN = int(Flag.THINKING | Flag.COUNTED | Flag.WHOLE)
CUE = PLAIN | int(Flag.BOUNDARY)
HALF = int(Flag.THINKING | Flag.COUNTED)
ANSWER = int(Flag.WHOLE)


class Token(NamedTuple):
    """One row: its token, what reading it meant, and the score of it."""

    token: int = 0
    flags: int = PLAIN
    count: int = 0
    zone: int = -1
    score: float = math.nan


class Step(NamedTuple):
    """What `decide` reads of a step."""

    rows: Rows
    flags: torch.Tensor
    count: torch.Tensor
    zone: torch.Tensor
    score: torch.Tensor


class Kept(NamedTuple):
    """What `decide` reads and writes of the slots."""

    settings: SlotSettings
    state: DecideState
    ring: Ring


Request = tuple[int, int, Sequence[Token]]  # slot, position of the first row, its rows


def step_of(*requests: Request) -> Step:
    table = [
        (slot, first + local, row.token, local, row)
        for slot, first, rows in requests
        for local, row in enumerate(rows)
    ]

    def column(values: list[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    read = [row[4] for row in table]
    return Step(
        Rows(*(column([row[number] for row in table]) for number in range(4))),
        column([int(row.flags) for row in read], torch.uint8),
        column([row.count for row in read]),
        column([row.zone for row in read]),
        column([row.score for row in read], torch.float32),
    )


def kept(slots: int, window: int, *, handoff: int = 5) -> Kept:
    return Kept(
        SlotSettings(slots, handoff=handoff, locked=3, device=DEVICE),
        DecideState(slots, window, DEVICE),
        Ring(1024, DEVICE),
    )


def some_control(rng: random.Random) -> SlotControl:
    return SlotControl(
        rng.choice(("off", "shadow", "active", "active", "active")),
        rng.choice((None, 0.25, 0.5, 0.5)),
        rng.choice((1.0, 0.5, 0.3)),
        rng.randint(1, 2),
        rng.choice((0, 0, 15)),
        *rng.choice(((None, None), (10, 15), (18, 18))),
        [rng.randrange(3) for _ in range(rng.randint(0, 5))],
        [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 3))],
    )


def some_entry(rng: random.Random, position: int) -> Entry:
    stop = rng.choice((-1, -1, position - rng.randint(0, 6)))
    return Entry(
        rng.choice((math.nan, 0.5, rng.random())),
        rng.randrange(2),
        stop,
        0 if stop < 0 else int(rng.choice((Verdict.SCORE, Verdict.BUDGET, Verdict.ASKED))),
        stop < 0 and rng.random() < 0.3,
    )


def some_rows(rng: random.Random, first: int, length: int) -> list[Token]:
    """Scores and thresholds are few, so that ties come often; tokens too, so that hand-offs are met."""
    rows, count = [], rng.randrange(20)
    for position in range(first, first + length):
        flags = rng.choice((PLAIN, PLAIN, CUE, CUE, CUE, HALF, ANSWER, ANSWER | Flag.BOUNDARY))
        if rng.random() < 0.03:
            flags = int(Flag.LOST)
        count += flags & Flag.COUNTED > 0
        zone = rng.choice((-1, position, position - 4))
        score = rng.choice((math.nan, 0.25, 0.5, 0.75, rng.random()))
        rows.append(Token(rng.randrange(3), int(flags), count, zone, score))
    return rows


def some_step(seed: int, count: int, window: int) -> tuple[list[Request], dict[Impl, Kept]]:
    """`count` rows of requests that were entered, were not, are nobody's, or are told to be lost."""
    rng = random.Random(seed)
    worlds: dict[Impl, Kept] = {impl: kept(count + 1, window) for impl in IMPLS}
    requests: list[Request] = []
    slots = list(range(count + 1))
    rng.shuffle(slots)
    left = count
    while left:
        length = min(left, rng.randint(1, window - 1))
        slot, first, fate = slots.pop(), rng.randint(10, 400), rng.random()
        known = first - 1 if fate < 0.9 else first + 5
        control, entry = some_control(rng), some_entry(rng, known)
        hold, at, asked = rng.random() < 0.2, first - rng.randint(0, 5), rng.choice((None, None, 0, 15))
        for settings, state, _ in worlds.values():
            settings.enter(slot, control, hold=hold, known=at)
            state.enter(slot, known, entry)
            if asked is not None:
                settings.ask(slot, asked)
        requests.append((IDLE if fate < 0.05 else slot, first, some_rows(rng, first, length)))
        left -= length
    return requests, worlds


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, where a NaN equals itself."""
    return tensor.view(torch.int64) if tensor.dtype == torch.float64 else tensor


def entries(state: DecideState) -> list[tuple[Any, ...]]:
    """The valid entries; what lies behind a tag of -1 is nothing."""
    words = state.words.reshape(-1, state.words.shape[-1]).tolist()
    return [tuple(entry) if entry[0] >= 0 else (-1,) for entry in words]


def same_decided(one: Decided, other: Decided) -> None:
    for name, a, b in zip(Decided._fields, one, other, strict=True):
        assert a.dtype == b.dtype, name
        nan = torch.isnan(a) if a.is_floating_point() else torch.zeros_like(a, dtype=torch.bool)
        assert torch.equal(a.masked_fill(nan, 0), b.nan_to_num(0.0) if nan.any() else b), (
            f"{name}: {a.tolist()} is not {b.tolist()}"
        )


def decide_alike(step: Step, worlds: dict[Impl, Kept]) -> Decided:
    """What both implementations decide; they must agree in results, entries and records."""
    decided = {}
    for impl, world in worlds.items():
        with poisoned():
            decided[impl] = decide(*step, *world, impl=impl)
    same_decided(decided["torch"], decided["triton"])
    assert entries(worlds["torch"].state) == entries(worlds["triton"].state)
    assert torch.equal(worlds["torch"].ring.words, worlds["triton"].ring.words)
    return decided["triton"]
