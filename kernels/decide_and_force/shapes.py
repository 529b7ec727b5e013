"""Block sizes of the two kernels, and the configurations that the compile check must accept.

Chosen by arithmetic, which stands beside each number: nothing was timed on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.kernels.lanes import LANES, Lanes, lanes_for, power_of_two
from desist.kernels.shipped import Shipped

__all__ = ["Force", "decide", "force", "shipped"]


@dataclass(frozen=True, slots=True)
class Force:
    """A program takes `block` columns of one row. `locked`: a power of two, not less than the locked ids."""

    block: int
    locked: int
    num_warps: int = 8
    num_stages: int = 1


def decide(rows: int) -> Lanes:
    """For a step of `rows` rows, up to MAX_ROWS."""
    # A lane holds some forty numbers of 32 bits, and their addresses. 16 warps take 1,024 of them two by two
    # and may have 128 registers a thread; a block of AMD's 64-wide warps can have no more warps than that.
    return lanes_for(rows, most_warps=16)


def force(vocabulary: int, locked: int) -> Force:
    """For rows of `vocabulary` logits and at most `locked` locked ids."""
    # Nearly every program has nothing to do and ends at once, so they shall be few: 19 for each row of
    # 152,000 logits. One that forces writes 32 logits a thread.
    block = min(8192, max(64, power_of_two(vocabulary)))
    return Force(block, power_of_two(locked))


def shipped() -> list[Shipped]:
    """Every number of lanes; every type of logits with small and large vocabularies."""
    found = [_shipped_decide(rows) for rows in LANES]
    for dtype in ("bf16", "fp16", "fp32"):
        found += [_shipped_force(dtype, vocabulary, locked) for vocabulary, locked in ((500, 1), (151936, 4))]
    return found


_MODULE = "desist.kernels.decide_and_force"


def _shipped_decide(rows: int) -> Shipped:
    shape = decide(rows)
    words = ("slot", "position", "token", "local", "count", "zone", "settings", "handoff", "entries", "ring")
    return Shipped(
        f"decide_and_force.decide rows<={rows}",
        f"{_MODULE}.triton_decide",
        "_decide",
        {
            **dict.fromkeys((f"{name}_ptr" for name in words), "*i32"),
            **dict.fromkeys(("settings_doubles_ptr", "entry_doubles_ptr", "ring_doubles_ptr"), "*fp64"),
            "flags_ptr": "*u8",
            "score_ptr": "*fp32",
            "head_ptr": "*i64",
            **dict.fromkeys(("verdict_out", "locked_out"), "*u8"),
            "smoothed_out": "*fp64",
            "forced_out": "*i32",
            **dict.fromkeys(("n_rows", "longest", "window", "capacity"), "i32"),
        },
        {"BLOCK": shape.block},
        shape.num_warps,
        shape.num_stages,
        fp_fusion=False,
    )


def _shipped_force(dtype: str, vocabulary: int, locked: int) -> Shipped:
    shape = force(vocabulary, locked)
    return Shipped(
        f"decide_and_force.force {dtype} vocabulary={vocabulary} locked={locked}",
        f"{_MODULE}.triton_force",
        "_force",
        {
            "logits_ptr": f"*{dtype}",
            **dict.fromkeys(("forced_ptr", "slot_ptr", "locked_ids_ptr"), "*i32"),
            "locked_ptr": "*u8",
            **dict.fromkeys(("row_stride", "vocabulary", "n_locked"), "i32"),
        },
        {
            "LOWEST": -65504.0 if dtype == "fp16" else -1.0e30,
            "BLOCK": shape.block,
            "BLOCK_LOCKED": shape.locked,
        },
        shape.num_warps,
        shape.num_stages,
    )
