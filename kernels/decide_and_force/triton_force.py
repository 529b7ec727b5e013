"""Forces tokens in a batch of logits, in place. Rows of which nothing is asked are not even read."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["logits_ptr", "forced_ptr", "locked_ptr", "slot_ptr"])
def _force(
    logits_ptr,
    forced_ptr,
    locked_ptr,
    slot_ptr,
    # [S, n_locked], -1 behind the last id
    locked_ids_ptr,
    row_stride,
    vocabulary,
    n_locked,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_LOCKED: tl.constexpr,
):
    """Grid (columns / BLOCK, R). `forced` [R] and `locked` [R]: at most one of them asks for something.

    Each program of a row looks at the forced logit, and none writes it: so they need not wait for each other.
    The first one sees to the locked ids.
    """
    part = tl.program_id(0)
    row = tl.program_id(1)
    logits = logits_ptr + row.to(tl.int64) * row_stride
    forced = tl.load(forced_ptr + row)
    if (forced >= 0) & (forced < vocabulary):
        # Not so for NaN either.
        if tl.load(logits + forced).to(tl.float32) > float("-inf"):
            column = part * BLOCK + tl.arange(0, BLOCK)
            nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(logits_ptr.dtype.element_ty)
            tl.store(logits + column, nothing, mask=(column < vocabulary) & (column != forced))
    elif part == 0:
        slot = tl.load(slot_ptr + row)
        if (tl.load(locked_ptr + row) != 0) & (slot >= 0):
            place = tl.arange(0, BLOCK_LOCKED)
            ids = tl.load(locked_ids_ptr + slot * n_locked + place, mask=place < n_locked, other=-1)
            inside = (ids >= 0) & (ids < vocabulary)
            value = tl.load(logits + ids, mask=inside, other=0.0).to(tl.float32)
            lowest = tl.full([BLOCK_LOCKED], LOWEST, tl.float32).to(logits_ptr.dtype.element_ty)
            tl.store(logits + ids, lowest, mask=inside & (value > LOWEST))
