"""vLLM's own thinking budget (Model Runner V2) beside ours, as a script: prints how many rows were compared.

Both are interpreted, so it needs a process of its own: vLLM looks for Triton's back ends when it is imported.
vLLM derives what to force from the whole token history, ours keeps a position: two ways to one hard budget.
"""

from __future__ import annotations

import os
import random
import sys
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.backends

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.decide_and_force import DecideState, Ring, SlotControl, SlotSettings, decide
from desist.kernels.rows import Rows, window_for

VOCABULARY, OPEN, CLOSE = 30, 1, 2
SLOTS, LENGTH, DRAFTS = 4, 96, 2
ENDS = ([CLOSE], [3, CLOSE], [4, 3, CLOSE])


class Driver:
    """Says that there is a device, so that vLLM takes Triton for usable."""

    @staticmethod
    def is_active() -> bool:
        return True


def numbers(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Oracle:
    """vLLM's state: the tokens of each slot, and where it last found a tag in them."""

    def __init__(self, end: list[int]) -> None:
        from vllm.v1.worker.gpu.sample.thinking_budget import apply_thinking_budget

        self._apply = apply_thinking_budget
        self._end = numbers(end)
        self.tokens = torch.zeros(SLOTS, LENGTH, dtype=torch.int32)
        self.total, self.budget, self._scanned = (torch.zeros(SLOTS, dtype=torch.int32) for _ in range(3))
        self._opened, self._closed = (torch.full((SLOTS,), -1, dtype=torch.int32) for _ in range(2))

    def enter(self, slot: int, tokens: list[int], budget: int) -> None:
        """As vLLM's `add_request` does, for new requests and for resumed ones."""
        self._opened[slot] = self._closed[slot] = -1
        self._scanned[slot] = 0
        self.budget[slot] = budget
        self.put(slot, tokens)

    def put(self, slot: int, tokens: list[int]) -> None:
        self.tokens[slot, : len(tokens)] = numbers(tokens)
        self.total[slot] = len(tokens)

    def forced(self, rows: Rows) -> list[int]:
        """The forced token of each row, or -1."""
        logits = torch.zeros(len(rows.slot), VOCABULARY)
        self._apply(
            logits, rows.slot.unique(), rows.slot, self.budget, self.tokens, self.total,
            rows.token, rows.local, self._opened, self._closed, self._scanned,
            numbers([OPEN]), numbers([CLOSE]), self._end,
        )  # fmt: skip
        return torch.where(logits.amax(1) > 0, logits.argmax(1), -1).tolist()


class Both:
    """Requests in all slots under both budgets."""

    def __init__(self, seed: int, end: list[int]) -> None:
        self.rng, self.end = random.Random(seed), end
        self.oracle = Oracle(end)
        self.settings, self.ring = SlotSettings(SLOTS), Ring()
        self.state = DecideState(SLOTS, window_for(DRAFTS))
        self.tokens: dict[int, list[int]] = {}
        self.prompt: dict[int, int] = {}
        self.compared = self.made = 0
        for slot in range(SLOTS):
            self._fresh(slot)

    def _fresh(self, slot: int) -> None:
        prompt = [*(self._own() for _ in range(self.rng.randint(0, 5))), OPEN]
        # vLLM forces a budget of 0 onto the prompt's last row, at which we decide nothing yet.
        budget = self.rng.randint(1, 15)
        self.tokens[slot], self.prompt[slot] = [*prompt, self._own()], len(prompt)
        self.oracle.enter(slot, self.tokens[slot], budget)
        self.settings.enter(slot, SlotControl("off", hard=budget, handoff=self.end))
        self.state.enter(slot, len(prompt) - 1)

    def _own(self) -> int:
        """What the model draws: a plain token, seldom the end of thinking."""
        return CLOSE if self.rng.random() < 0.01 else self.rng.randrange(5, VOCABULARY)

    def step(self) -> None:
        plans = {slot: [tokens[-1], *self._drafts(slot)] for slot, tokens in self.tokens.items()}
        table, flags, counts = [], [], []
        for slot, plan in plans.items():
            first = len(self.tokens[slot]) - 1
            for local, token in enumerate(plan):
                reasoning = [*self.tokens[slot][self.prompt[slot] : -1], *plan[: local + 1]]
                thinking = CLOSE not in reasoning
                bits = Flag.WHOLE | (Flag.THINKING | Flag.COUNTED if thinking else Flag(0))
                table.append((slot, first + local, token, local))
                flags.append(int(bits))
                counts.append(len(reasoning) if thinking else reasoning.index(CLOSE))
        rows = Rows(*(column.contiguous() for column in numbers(table).T))  # type: ignore[arg-type]
        nothing = torch.full((len(table),), torch.nan)
        told = torch.tensor(flags, dtype=torch.uint8), numbers(counts), rows.slot * 0 - 1, nothing
        ours = decide(rows, *told, self.settings, self.state, self.ring, impl="triton").forced.tolist()
        theirs = self.oracle.forced(rows)
        row = 0
        for slot, plan in plans.items():
            self._take(slot, plan, ours[row : row + len(plan)], theirs[row : row + len(plan)])
            row += len(plan)

    def _drafts(self, slot: int) -> list[int]:
        """Plain tokens, or the forced ones rightly guessed."""
        budget, read = int(self.oracle.budget[slot]), len(self.tokens[slot]) - self.prompt[slot]
        ending = [5] * max(0, budget - read) + self.end[max(0, read - budget) :]
        guess = self.rng.random() < 0.5
        return (ending if guess else [self._own(), self._own()])[: self.rng.randint(0, DRAFTS)]

    def _take(self, slot: int, plan: list[int], ours: list[int], theirs: list[int]) -> None:
        """Compare the rows that count: those behind a refused draft are thrown away by the sampler."""
        for local, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, (
                f"slot {slot}, {self.tokens[slot]} + {plan}, row {local}: {one}, vLLM {other}"
            )
            self.compared += 1
            self.made += one >= 0
            drafted = plan[local + 1] if local + 1 < len(plan) else None
            right = drafted is not None and one < 0 and self.rng.random() < 0.7
            token = drafted if right and drafted is not None else one if one >= 0 else self._own()
            self.tokens[slot].append(token)
            if token != drafted:
                break
        tokens = self.tokens[slot]
        if CLOSE in tokens[self.prompt[slot] : -3] or self.rng.random() < 0.02:
            self._fresh(slot)
        elif self.rng.random() < 0.05:  # preempted and resumed at once
            entry = self.state.kept(slot, len(tokens) - 2)
            assert entry is not None
            self.oracle.enter(slot, tokens, int(self.oracle.budget[slot]))
            self.state.enter(slot, len(tokens) - 2, entry)
        else:
            self.oracle.put(slot, tokens)


def main() -> None:
    triton.backends.backends["cpu"] = SimpleNamespace(driver=Driver, compiler=None)  # type: ignore[assignment]
    for seed, end in enumerate(ENDS):
        both = Both(seed, end)
        for _ in range(60):
            both.step()
        sys.stdout.write(f"compared {both.compared} forced {both.made}\n")


if __name__ == "__main__":
    main()
