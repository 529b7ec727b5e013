"""The MLP of the chosen rows, in two kernels: the first layer, split; then sums, layers 2 and 3, score.

One program for one row could not do it: the first layer's weights are megabytes, and one multiprocessor
would be busy with them for longer than the model's own step. So the first layer is cut into pieces
(outputs x a part of one tap), each piece is read from memory by one program, and the pieces' partial sums
are added in a fixed order. How it is cut does not depend on the rows, and no row is added to another: a
row's score is one number, whatever stands beside it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_tap(tap, a0, a1, a2, a3, a4, a5, a6, a7, TAPS: tl.constexpr):
    """The argument of this tap, out of up to 8."""
    chosen = a0
    if TAPS > 1:
        chosen = tl.where(tap == 1, a1, chosen)
    if TAPS > 2:
        chosen = tl.where(tap == 2, a2, chosen)
    if TAPS > 3:
        chosen = tl.where(tap == 3, a3, chosen)
    if TAPS > 4:
        chosen = tl.where(tap == 4, a4, chosen)
    if TAPS > 5:
        chosen = tl.where(tap == 5, a5, chosen)
    if TAPS > 6:
        chosen = tl.where(tap == 6, a6, chosen)
    if TAPS > 7:
        chosen = tl.where(tap == 7, a7, chosen)
    return chosen


# Numbers that change from step to step must not make a new compilation.
@triton.jit(do_not_specialize=["n_places"], do_not_specialize_on_alignment=["at_ptr", "chosen_ptr", "n_ptr"])
def _first_layer(
    # taps [T, D] with strides of rows and columns; unused ones repeat the first
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    row0,
    row1,
    row2,
    row3,
    row4,
    row5,
    row6,
    row7,
    column0,
    column1,
    column2,
    column3,
    column4,
    column5,
    column6,
    column7,
    at_ptr,  # [R], the tap's row that a row reads
    chosen_ptr,  # [M] int32, row numbers; -1 is nobody's
    n_ptr,  # [1] int32, how many of them
    weight_ptr,  # [N1, TAPS * D]
    partial_ptr,  # [splits, M, P1] float32, P1 = N1 rounded up to a multiple of 16
    n_places,  # M
    hidden,  # D
    width,  # N1
    sixteens,  # P1 / 16, so that the compiler sees that P1 is a multiple
    TAPS: tl.constexpr,
    SPLITS_PER_TAP: tl.constexpr,
    CHUNKS: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid (tiles of N1, TAPS * SPLITS_PER_TAP). A split is CHUNKS blocks of BLOCK_K inputs of one tap.

    SINGLE: multiply in float32, where the types of rows and weights differ or are float32 themselves.
    """
    n = tl.load(n_ptr)
    if n == 0:
        return
    split = tl.program_id(1)
    tap = split // SPLITS_PER_TAP
    begin = (split % SPLITS_PER_TAP) * (CHUNKS * BLOCK_K)
    x_ptr = _of_tap(tap, x0, x1, x2, x3, x4, x5, x6, x7, TAPS)
    row_stride = _of_tap(tap, row0, row1, row2, row3, row4, row5, row6, row7, TAPS)
    column_stride = _of_tap(tap, column0, column1, column2, column3, column4, column5, column6, column7, TAPS)

    padded = sixteens * 16
    out = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_width = out < width
    inner = tl.arange(0, BLOCK_K)
    weights = weight_ptr + out[:, None] * (TAPS * hidden) + tap * hidden + inner[None, :]
    if CHUNKS == 1:  # the whole split: read once, held over all tiles of rows
        w = tl.load(weights + begin, mask=in_width[:, None] & (begin + inner < hidden)[None, :], other=0.0)

    for start in range(0, n, BLOCK_M):
        place = start + tl.arange(0, BLOCK_M)
        row = tl.load(chosen_ptr + place, mask=place < n, other=-1)
        real = row >= 0
        token_row = tl.load(at_ptr + row, mask=real, other=0).to(tl.int64)
        x_rows = x_ptr + token_row[None, :] * row_stride
        # [BLOCK_N, BLOCK_M]: outputs first, as they are the longer side.
        total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for chunk in range(CHUNKS):
            k = begin + chunk * BLOCK_K + inner
            in_tap = k < hidden
            x = tl.load(x_rows + k[:, None] * column_stride, mask=in_tap[:, None] & real[None, :], other=0.0)
            if CHUNKS > 1:
                w = tl.load(
                    weights + begin + chunk * BLOCK_K, mask=in_width[:, None] & in_tap[None, :], other=0.0
                )
            if SINGLE:
                total = tl.dot(w.to(tl.float32), x.to(tl.float32), total, input_precision="ieee")
            else:
                total = tl.dot(w, x, total)
        total = tl.where(in_width[:, None], total, 0.0)  # past the edge stands NaN if a row is not finite
        target = partial_ptr + (split * n_places + place[None, :]) * padded + out[:, None]
        tl.store(target, total, mask=(out < padded)[:, None] & (place < n)[None, :])


@triton.jit
def _relu(x):
    """Keeps NaN, which `tl.maximum` would turn into 0, and so into a score."""
    return tl.where(x < 0.0, 0.0, x)


@triton.jit(do_not_specialize=["n_places"], do_not_specialize_on_alignment=["chosen_ptr", "n_ptr"])
def _finish(
    partial_ptr,  # [SPLITS, M, P1] float32, zero past N1; so are the next two
    chosen_ptr,  # [M] int32
    n_ptr,  # [1] int32
    bias1_ptr,  # [P1]
    weight2_ptr,  # [N2, P1]
    bias2_ptr,  # [N2]
    weight3_ptr,  # [1, N2]
    bias3_ptr,  # [1]
    score_ptr,  # by row number if SCATTER, else by place
    n_places,  # M
    sixteens,  # P1 / 16
    width2,  # N2
    LAYERS: tl.constexpr,
    SPLITS: tl.constexpr,
    SCATTER: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_1: tl.constexpr,
    BLOCK_2: tl.constexpr,
):
    """Grid (M,): one program for one place. BLOCK_2: a power of two >= width2."""
    place = tl.program_id(0)
    if place >= tl.load(n_ptr):
        return
    padded1 = sixteens * 16
    second = tl.arange(0, BLOCK_2)
    parts = tl.arange(0, BLOCK_S)
    total2 = tl.zeros([BLOCK_2], tl.float32)
    for begin in range(0, padded1, BLOCK_1):
        first = begin + tl.arange(0, BLOCK_1)
        in_first = first < padded1
        # BLOCK_S running sums, each in the order of the splits; then these, in the order of the tree.
        sums = tl.zeros([BLOCK_S, BLOCK_1], tl.float32)
        for split in range(0, SPLITS, BLOCK_S):
            part = split + parts
            source = partial_ptr + (part[:, None] * n_places + place) * padded1 + first[None, :]
            sums += tl.load(source, mask=(part < SPLITS)[:, None] & in_first[None, :], other=0.0)
        h1 = tl.sum(sums, 0) + tl.load(bias1_ptr + first, mask=in_first, other=0.0)
        if LAYERS == 1:  # one output, at first = 0; the rest is zero
            total2 += tl.sum(h1, 0)
        else:
            both = (second < width2)[:, None] & in_first[None, :]
            w2 = tl.load(weight2_ptr + second[:, None] * padded1 + first[None, :], mask=both, other=0.0)
            total2 += tl.sum(w2 * _relu(h1)[None, :], 1)

    if LAYERS == 1:
        z = tl.sum(tl.where(second == 0, total2, 0.0), 0)
    elif LAYERS == 2:
        z = tl.sum(tl.where(second == 0, total2, 0.0), 0) + tl.load(bias2_ptr)
    else:
        in_second = second < width2
        h2 = _relu(total2 + tl.load(bias2_ptr + second, mask=in_second, other=0.0))
        w3 = tl.load(weight3_ptr + second, mask=in_second, other=0.0)
        # Past the edge stands NaN where an h1 is infinite (0 * inf), which would hide a score of 0 or 1.
        z = tl.sum(tl.where(in_second, w3 * h2, 0.0), 0) + tl.load(bias3_ptr)

    row = tl.load(chosen_ptr + place)
    score = tl.where(row >= 0, tl.sigmoid(z), float("nan"))
    if SCATTER:
        tl.store(score_ptr + row, score, mask=row >= 0)
    else:
        tl.store(score_ptr + place, score)
