"""From the projection to scores: gates and candidates for all rows at once, then the walk over positions.

Knows rows, flags, the state by position and the head. No hidden states.
"""
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton ships no type information, and its functions' arguments have no Python types.

from __future__ import annotations

import triton
import triton.language as tl

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.stream_score.state import EMPTY
from desist.kernels.stream_score.triton_dots import dot_float32
from desist.kernels.stream_score.triton_project import counted

_COUNTED = tl.constexpr(int(Flag.COUNTED))
_LOST = tl.constexpr(int(Flag.LOST))
_EMPTY = tl.constexpr(EMPTY)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize=["rows"])
def gates(
    projected,
    slot,
    flags,
    weight,
    bias,
    out,
    rows,
    states,
    projection,
    ROW_TILE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """`out` [2, R, H]: the update gate and the candidate of `projected` [R, P]; `weight` [2, H, P].

    Neither reads the state, so one program makes a tile of 16 rows x `BLOCK_H` of both.
    """
    row = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    wanted = counted(slot, flags, row, rows)
    gate = tl.zeros([ROW_TILE, BLOCK_H], tl.float32)
    candidate = tl.zeros([ROW_TILE, BLOCK_H], tl.float32)
    for start in range(0, projection, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        there = wanted[:, None] & (p[None, :] < projection)
        x = tl.load(projected + row[:, None] * projection + p[None, :], mask=there, other=0.0)
        inside = (p[:, None] < projection) & (h[None, :] < states)
        column = weight + h[None, :] * projection + p[:, None]
        gate = dot_float32(x, tl.load(column, mask=inside, other=0.0), gate)
        column += states * projection
        candidate = dot_float32(x, tl.load(column, mask=inside, other=0.0), candidate)
    gate += tl.load(bias + h, mask=h < states, other=0.0)[None, :]
    candidate += tl.load(bias + states + h, mask=h < states, other=0.0)[None, :]
    place = out + row[:, None] * states + h[None, :]
    inside = wanted[:, None] & (h[None, :] < states)
    tl.store(place, _sigmoid(gate), mask=inside)
    tl.store(place + rows * states, candidate, mask=inside)


@triton.jit(do_not_specialize=["rows", "window"])
def walk(
    slot,
    position,
    local,
    flags,
    gated,
    projected,
    weight,
    bias,
    tags,
    kept,
    score,
    rows,
    window,
    states,
    projection,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """`score` [R], and the entry of each row's position in `tags` [S, W] and `kept` [S, W, H].

    One program a row. It walks from the first row of its own request, through `gated` [2, R, H], at most
    W - 1 rows: so no program waits for another. It reads the entry before the first row and writes that of
    its own position; the window is longer than a request's rows, so no other program writes what it reads.
    What is read where nothing is known, or nothing counts, is thrown away.
    """
    row = tl.program_id(0)
    own = tl.load(slot + row)
    before_it = tl.load(local + row)
    result = float("nan")
    if (own >= 0) & (before_it < window - 1):
        first = row - before_it
        start = tl.load(position + first) - 1
        entry = own * window + tl.maximum(start, 0) % window
        known = (start >= 0) & (tl.load(tags + entry) == start)
        i = tl.arange(0, BLOCK_H)
        inside = i < states
        h = tl.load(kept + entry.to(tl.int64) * states + i, mask=inside, other=0.0)
        for there in range(first, row + 1):
            bits = tl.load(flags + there).to(tl.int32)
            known = known & ((bits & _LOST) == 0)
            counts = (bits & _COUNTED) != 0
            gate = tl.load(gated + there * states + i, mask=inside, other=0.0)
            candidate = tl.load(gated + (rows + there) * states + i, mask=inside, other=0.0)
            h = tl.where(counts, h + gate * (candidate - h), h)
        here = tl.load(position + row)
        entry = own * window + here % window
        tl.store(tags + entry, tl.where(known, here, _EMPTY))
        tl.store(kept + entry.to(tl.int64) * states + i, h, mask=inside)
        if known & ((tl.load(flags + row).to(tl.int32) & _COUNTED) != 0):
            p = tl.arange(0, BLOCK_P)
            x = tl.load(projected + row * projection + p, mask=p < projection, other=0.0)
            from_x = tl.sum(x * tl.load(weight + states + p, mask=p < projection, other=0.0))
            from_h = tl.sum(h * tl.load(weight + i, mask=inside, other=0.0))
            result = _sigmoid(from_h + from_x + tl.load(bias))
    tl.store(score + row, result)
