"""The ops in plain torch as one would write them without kernels: what the kernels are compared with.

It is given less to do than they are: it is told which rows are at a boundary, where finding them would make
it wait for the device, and it knows no drafts, budgets, hold-off zones and hand-offs. So its times are low.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from desist.kernels.boundary_score import Flag
from desist.proxy.studies.kernel_step import Step

__all__ = ["EagerState", "decide_step", "score_step", "stream_step"]


@dataclass(slots=True)
class EagerState:
    """What is kept of each slot [S]: reasoning tokens, smoothed score (NaN: none), boundaries in a row above
    the threshold; and `h` [S, H] of the streaming head."""

    count: torch.Tensor
    smoothed: torch.Tensor
    streak: torch.Tensor
    h: torch.Tensor

    @classmethod
    def of(cls, step: Step) -> EagerState:
        """As at the start of a trace."""
        slots, device = step.shape.rows, step.device
        return cls(
            torch.zeros(slots, dtype=torch.int32, device=device),
            torch.full((slots,), torch.nan, dtype=torch.float64, device=device),
            torch.zeros(slots, dtype=torch.int32, device=device),
            torch.zeros((slots, step.shape.states), device=device),
        )


@torch.no_grad()
def score_step(step: Step) -> torch.Tensor:
    """Score [M] of the rows at a boundary: the first layer in its own type, the others in float32."""
    where = step.at[step.chosen].long()
    first, *others = step.probe.layers
    x = linear(torch.cat([tap[where] for tap in step.taps], dim=1), first.weight).float() + first.bias
    for layer in others:
        x = linear(x.relu(), layer.weight, layer.bias)
    return x.squeeze(-1).sigmoid()


@torch.no_grad()
def decide_step(
    step: Step, state: EagerState, score: torch.Tensor, *, lam: float, ema: float, patience: int
) -> torch.Tensor:
    """Whether each row [R] stops, from the scores [M] of those at a boundary: table, smoothing, patience."""
    slot = step.rows.slot.long()
    kind = step.automaton.token_class[step.rows.token.long()].long()
    flags = step.automaton.flags[torch.zeros_like(kind), kind]
    count = state.count[slot] + ((flags & Flag.COUNTED) != 0)
    here = slot[step.chosen]
    before = state.smoothed[here]
    smoothed = torch.where(before.isnan(), score.double(), ema * score + (1.0 - ema) * before)
    streak = torch.where(smoothed > lam, state.streak[here] + 1, 0)
    state.count[slot] = count
    state.smoothed[here] = smoothed
    state.streak[here] = streak
    stops = torch.zeros_like(slot, dtype=torch.bool)
    stops[step.chosen] = streak >= patience
    return stops


@torch.no_grad()
def stream_step(step: Step, state: EagerState) -> torch.Tensor:
    """Score [R] of all rows: the projection in its own type, the rest in float32."""
    head = step.head
    slot = step.rows.slot.long()
    projected = (linear(step.taps[0][step.at.long()], head.inp).float() + head.inp_bias).relu()
    gate = linear(projected, head.gates[0].float(), head.gates_bias[0]).sigmoid()
    candidate = linear(projected, head.gates[1].float(), head.gates_bias[1])
    h = state.h[slot]
    h = h + gate * (candidate - h)
    state.h[slot] = h
    return (torch.cat((h, projected), dim=1) @ head.out + head.out_bias).sigmoid()
