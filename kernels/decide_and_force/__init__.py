"""The stop machine on the device: from scores to decisions to forced logits, without asking the host.

Knows slots, positions, numbers and token ids; no profiles, certificates or policies. `decide` takes what
`boundary_score` puts out; `force` changes the logits before they are sampled; a `Ring` tells the host.
`impl`: "torch" is the specification (`reference`), "auto" takes the best one that the tensors' device has.
"""

from __future__ import annotations

from typing import Any

import torch

from desist.kernels.choice import Impl, chosen
from desist.kernels.decide_and_force import reference
from desist.kernels.decide_and_force.outcome import Decided
from desist.kernels.decide_and_force.ring import Record, Ring, RingCopy
from desist.kernels.decide_and_force.settings import SlotControl, SlotSettings
from desist.kernels.decide_and_force.state import DecideState, Entry
from desist.kernels.decide_and_force.verdict import Verdict
from desist.kernels.lanes import MAX_ROWS, check_rows
from desist.kernels.rows import Rows

__all__ = [
    "MAX_ROWS",
    "DecideState",
    "Decided",
    "Entry",
    "Record",
    "Ring",
    "RingCopy",
    "SlotControl",
    "SlotSettings",
    "Verdict",
    "decide",
    "force",
]


_TYPES = (torch.uint8, torch.int32, torch.int32, torch.float32)


def _module(impl: Impl, device: torch.device) -> Any:
    """The module that does it; Triton is imported only when it is taken."""
    if chosen(impl, device) == "torch":
        return reference
    from desist.kernels.decide_and_force import launch

    return launch


def decide(
    rows: Rows,
    flags: torch.Tensor,
    count: torch.Tensor,
    zone: torch.Tensor,
    score: torch.Tensor,
    settings: SlotSettings,
    state: DecideState,
    ring: Ring,
    *,
    impl: Impl = "auto",
) -> Decided:
    """What is decided at R rows (0 to MAX_ROWS), and what the tokens after them must be.

    `flags` [R] uint8, `count` and `zone` [R] int32 as in `boundary_score.Found`; `score` [R] float32, NaN is
    no evidence. Writes an entry of `state` for each row and appends to `ring`: boundaries decided at, stops,
    withdrawals, and the first row of a slot that is lost. A slot whose entry before the first row is missing
    is LOST until `state.enter`; so are rows beyond the window. IDLE rows read and write nothing.
    """
    check_rows(len(rows.slot))
    types = tuple(column.dtype for column in (flags, count, zone, score))
    if types != _TYPES:
        told = (", ".join(map(str, each)) for each in (types, _TYPES))
        raise ValueError("flags, counts, zones and scores are {}. Give {}.".format(*told))
    decided: Decided = _module(impl, state.device).decide(
        rows, flags, count, zone, score, settings, state, ring
    )
    return decided


def force(
    logits: torch.Tensor, decided: Decided, rows: Rows, settings: SlotSettings, *, impl: Impl = "auto"
) -> None:
    """Change `logits` [R, V] in place, float32, bfloat16 or float16, rows at any stride.

    Where a token is forced and its logit is not masked, all others become minus infinity; a masked token is
    never raised, and the request's next row shows that the stop was not carried out. Where ids are locked
    their logits become very low. Other rows stay as they are, bit for bit.
    """
    if logits.stride(-1) != 1 and logits.shape[-1] > 1:
        raise ValueError(
            "the logits of a row are not next to each other. Give [R, V] with the last stride 1."
        )
    _module(impl, logits.device).force(logits, decided, rows, settings)
