"""From hidden states to the projection: a split-K product with tensor-core tiles, and its ordered sum.

Knows rows, flags, hidden states and the first layer. No state and no scores.
"""
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton ships no type information, and its functions' arguments have no Python types.

from __future__ import annotations

import triton
import triton.language as tl

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.stream_score.triton_dots import dot

_COUNTED = tl.constexpr(int(Flag.COUNTED))


@triton.jit
def counted(slot, flags, row, rows):
    """Which rows of the tile `row` [M] are ours and have read a token that counts."""
    there = row < rows
    ours = tl.load(slot + row, mask=there, other=-1) >= 0
    bits = tl.load(flags + row, mask=there, other=0).to(tl.int32)
    return ours & ((bits & _COUNTED) != 0)


@triton.jit
def _weight_tile(weight, n, k, width, projection):
    """Tile [K, N] of `weight` [P, D], transposed. Beyond P the last row again: those sums are not stored."""
    source = weight + tl.minimum(n, projection - 1).to(tl.int64)[None, :] * width
    return tl.load(source + k[:, None], mask=k[:, None] < width, other=0.0)


@triton.jit
def _row_tile(source, wanted, k, width, x_column):
    """Tile [M, K] of the hidden states whose rows begin at `source` [M, 1]; zeros where not `wanted` [M]."""
    return tl.load(source + k[None, :] * x_column, mask=wanted[:, None] & (k[None, :] < width), other=0.0)


@triton.jit(do_not_specialize=["rows", "steps"])
def project(
    x,
    at,
    slot,
    flags,
    weight,
    partial,
    rows,
    width,
    projection,
    steps,
    x_row,
    x_column,
    ROW_TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HELD: tl.constexpr,
):
    """`partial` [splits, R, P] of `x[at]` [R, D] @ `weight` [P, D] transposed, one sum for each split of D.

    Program (tile of P, split of D, group of row tiles): `steps` chunks of `BLOCK_K` columns. It holds its
    tile of the weights if `HELD` (one step), else has its chunks in the cache, while the row tiles pass by:
    the weights come from memory once. Rows that do not count are neither read nor written.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    first = split * steps * BLOCK_K + tl.arange(0, BLOCK_K)
    if HELD:
        held = _weight_tile(weight, n, first, width, projection)
    for start in range(tl.program_id(2) * ROW_TILE, rows, tl.num_programs(2) * ROW_TILE):
        row = start + tl.arange(0, ROW_TILE)
        wanted = counted(slot, flags, row, rows)
        source = x + tl.load(at + row, mask=wanted, other=0).to(tl.int64)[:, None] * x_row
        total = tl.zeros([ROW_TILE, BLOCK_N], tl.float32)
        if HELD:
            total = dot(_row_tile(source, wanted, first, width, x_column), held, total)
        else:
            for step in range(steps):
                k = first + step * BLOCK_K
                tile = _weight_tile(weight, n, k, width, projection)
                total = dot(_row_tile(source, wanted, k, width, x_column), tile, total)
        place = (split * rows + row)[:, None] * projection + n[None, :]
        tl.store(partial + place, total, mask=wanted[:, None] & (n[None, :] < projection))


@triton.jit(do_not_specialize=["rows", "splits"])
def reduce(
    partial,
    slot,
    flags,
    bias,
    projected,
    rows,
    splits,
    projection,
    ROW_TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`projected` [R, P] = relu(bias + the sums in `partial` [splits, R, P], added in their order)."""
    row = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = counted(slot, flags, row, rows)[:, None] & (n[None, :] < projection)
    place = row[:, None] * projection + n[None, :]
    total = tl.zeros([ROW_TILE, BLOCK_N], tl.float32)
    for split in range(splits):
        total += tl.load(partial + split * rows * projection + place, mask=inside, other=0.0)
    total += tl.load(bias + n, mask=n < projection, other=0.0)[None, :]
    # Not a maximum, which would make a NaN zero, and so a score out of no evidence.
    tl.store(projected + place, tl.where(total < 0, 0.0, total), mask=inside)
