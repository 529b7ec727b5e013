"""Kernels of one program with one lane for each row of a step: how many rows they take, and in what sizes.

Knows numbers only. Shared by the ops, since a step that one of them takes the others must take too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LANES", "MAX_ROWS", "Lanes", "check_rows", "lanes_for", "power_of_two"]

MAX_ROWS = 1024
#: Three sizes, so that a growing batch compiles three kernels and not eleven.
LANES = (64, 256, MAX_ROWS)


@dataclass(frozen=True, slots=True)
class Lanes:
    """One lane a row."""

    block: int
    num_warps: int
    num_stages: int = 1


def lanes_for(rows: int, *, most_warps: int) -> Lanes:
    """For a step of `rows` rows, up to MAX_ROWS, in warps of 32 lanes and at most `most_warps` of them."""
    block = next(lanes for lanes in LANES if rows <= lanes)
    return Lanes(block, min(most_warps, block // 32))


def check_rows(count: int) -> None:
    """Raise `ValueError` for more rows than one launch takes."""
    if count > MAX_ROWS:
        raise ValueError(f"{count} rows are more than one launch takes. Give at most {MAX_ROWS} at a time.")


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()
