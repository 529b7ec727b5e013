"""From the rows of a step to the scores of those that are boundaries, without asking the host.

Knows slots, positions and tables; no profiles, cards or policies. `find_boundaries` walks the token
automaton; `mlp_score_rows` scores rows that the caller names; `boundary_score` does both. `impl`: "torch"
is the specification (`reference`), "auto" takes the best one that the tensors' device has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from desist.kernels.boundary_score import reference
from desist.kernels.boundary_score.automaton import Automaton
from desist.kernels.boundary_score.flags import Flag
from desist.kernels.boundary_score.outcome import Found, Scored
from desist.kernels.boundary_score.packed import MAX_TAPS, Packed, pack
from desist.kernels.boundary_score.state import BoundaryState
from desist.kernels.choice import Impl, chosen
from desist.kernels.lanes import MAX_ROWS, check_rows
from desist.kernels.rows import Rows

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_ROWS",
    "MAX_TAPS",
    "Automaton",
    "BoundaryState",
    "Flag",
    "Found",
    "Packed",
    "Scored",
    "boundary_score",
    "find_boundaries",
    "mlp_score_rows",
    "pack",
]


def _module(impl: Impl, device: torch.device) -> Any:
    """The module that does it; Triton is imported only when it is taken."""
    if chosen(impl, device) == "torch":
        return reference
    from desist.kernels.boundary_score import launch

    return launch


def find_boundaries(rows: Rows, automaton: Automaton, state: BoundaryState, *, impl: Impl = "auto") -> Found:
    """What the tokens of R rows (0 to MAX_ROWS) mean; writes an entry of `state` for each row.

    A slot whose entry before the first row is missing, or that reads a token outside the vocabulary, is
    LOST until `state.enter`; so are rows beyond the window. IDLE rows read and write nothing.
    """
    check_rows(len(rows.slot))
    found: Found = _module(impl, state.device).find_boundaries(rows, automaton, state)
    return found


def mlp_score_rows(
    taps: Sequence[torch.Tensor],
    at: torch.Tensor,
    chosen_rows: torch.Tensor,
    probe: Packed,
    *,
    impl: Impl = "auto",
) -> torch.Tensor:
    """Score [M] float32 of the rows `chosen_rows` [M] int; -1 is nobody's row and scores NaN.

    `taps`: hidden states [T, D], any strides, one type; row r reads all of them at `at[r]` (`at` [R] int).
    """
    _check_taps(taps, probe)
    check_rows(len(chosen_rows))
    score: torch.Tensor = _module(impl, at.device).mlp_score_rows(taps, at, chosen_rows, probe)
    return score


def boundary_score(
    taps: Sequence[torch.Tensor],
    at: torch.Tensor,
    rows: Rows,
    automaton: Automaton,
    state: BoundaryState,
    probe: Packed,
    *,
    impl: Impl = "auto",
) -> Scored:
    """`find_boundaries`, and the score [R] of the rows that are boundaries while thinking; NaN elsewhere.

    `taps` and `at` as for `mlp_score_rows`; `at` is not read for other rows.
    """
    _check_taps(taps, probe)
    check_rows(len(rows.slot))
    scored: Scored = _module(impl, state.device).boundary_score(taps, at, rows, automaton, state, probe)
    return scored


def _check_taps(taps: Sequence[torch.Tensor], probe: Packed) -> None:
    if len(taps) != probe.taps:
        raise ValueError(f"the probe reads {probe.taps} taps, not {len(taps)}. Give the taps of its card.")
    for tap in taps:
        if tap.ndim != 2 or tap.shape[1] != probe.hidden or tap.dtype != taps[0].dtype:
            raise ValueError(
                f"a tap is {tap.dtype} {tuple(tap.shape)}: all must be [T, {probe.hidden}], of one type."
            )
