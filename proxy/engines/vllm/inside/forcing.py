"""Forces tokens in a batch of logits, without asking the device anything.

A token that is already masked is never raised: the row is left as it is, and the next row of the request
shows that the stop was not carried out. Locked tokens get a large negative value instead of minus infinity,
so that a row in which nothing else is allowed does not turn into NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from desist.proxy.engines.vllm.inside.runtime import Force

if TYPE_CHECKING:
    import torch

__all__ = ["apply_at_places", "apply_at_rows"]

LOCKED = -1.0e30


def apply_at_rows(logits: torch.Tensor, forces: Sequence[Force]) -> None:
    """Change `logits` [rows, V] in place at the rows that the forces name."""
    import torch

    forced = [force for force in forces if force.what.token is not None]
    if forced:
        rows = torch.tensor([force.row for force in forced], device=logits.device)
        tokens = torch.tensor([force.what.token for force in forced], device=logits.device)
        logits[rows] = _only(logits[rows], tokens)
    locked = [(force.row, token) for force in forces for token in force.what.locked]
    if locked:
        rows, tokens = (torch.tensor(part, device=logits.device) for part in zip(*locked, strict=True))
        logits[rows, tokens] = logits[rows, tokens].clamp(max=LOCKED)


def apply_at_places(
    logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, forces: Sequence[Force]
) -> None:
    """Change `logits` [rows, V] in place where a row's slot and position (each [rows]) are those of a force.

    The rows may be any part of the step's rows in any order (the rejection sampler works in slices).
    """
    import torch

    device = logits.device

    def matching(chosen: Sequence[Force]) -> torch.Tensor:
        """[rows, forces]: whether the row is the force's place."""
        at_slot = torch.tensor([force.slot for force in chosen], device=device)
        at_position = torch.tensor([force.position for force in chosen], device=device)
        return (slots[:, None] == at_slot) & (positions[:, None] == at_position)

    forced = [force for force in forces if force.what.token is not None]
    if forced:
        match = matching(forced)
        tokens = torch.tensor([force.what.token for force in forced], device=device)
        wanted = (match * tokens).sum(dim=1)
        logits.copy_(torch.where(match.any(dim=1)[:, None], _only(logits, wanted), logits))
    for force in forces:
        if force.what.locked:
            match = matching([force])[:, 0]
            for token in force.what.locked:
                column = logits[:, token]
                column.copy_(torch.where(match, column.clamp(max=LOCKED), column))


def _only(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """`rows` [n, V] with nothing left but `tokens` [n], save rows where that token is masked."""
    import torch

    kept = rows.gather(1, tokens[:, None])
    alone = torch.full_like(rows, -torch.inf).scatter_(1, tokens[:, None], kept)
    return torch.where(kept > -torch.inf, alone, rows)
