"""Boundaries of all rows of a step in one program: one lane walks one row.

A lane reads the tokens of its request from the first row of the step up to its own. That repeats at most
`WINDOW - 2` look-ups of an earlier row, and saves what would cost more: passing states between lanes.
Lanes start from the entry before the first row and write the entries from the first row on; with no more
rows than the window takes these are different places, so no lane waits for another.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from desist.kernels.boundary_score.flags import Flag

_LOST = tl.constexpr(int(Flag.LOST))
_ZONE = tl.constexpr(int(Flag.ZONE))
_COUNTED = tl.constexpr(int(Flag.COUNTED))
_BOUNDARY = tl.constexpr(int(Flag.BOUNDARY))
_SCORED = tl.constexpr(int(Flag.BOUNDARY | Flag.THINKING))
_CUTTABLE = tl.constexpr(int(Flag.THINKING | Flag.COUNTED | Flag.WHOLE))


# What changes from step to step must not make a new compilation.
@triton.jit(
    do_not_specialize=["n_rows"],
    do_not_specialize_on_alignment=["slot_ptr", "position_ptr", "token_ptr", "local_ptr"],
)
def _find(
    # rows of the step, [R] int32
    slot_ptr,
    position_ptr,
    token_ptr,
    local_ptr,
    n_rows,
    # the automaton: [V], [N, C], [N, C]
    token_class_ptr,
    next_ptr,
    bits_ptr,
    vocabulary,
    classes,
    every_n,
    # the entries, [S, WINDOW] int32
    tag_ptr,
    automaton_ptr,
    count_ptr,
    periods_ptr,
    zone_ptr,
    # results, [R], and the number of rows to be scored, [1]
    flags_out,
    count_out,
    zone_out,
    compact_out,
    n_out,
    score_out,
    WINDOW: tl.constexpr,
    WITH_SCORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (1,). `score_out` is cleared to NaN if WITH_SCORE. BLOCK: a power of two >= n_rows."""
    lane = tl.arange(0, BLOCK)
    there = lane < n_rows
    slot = tl.load(slot_ptr + lane, mask=there, other=-1)
    local = tl.load(local_ptr + lane, mask=there, other=0)
    position = tl.load(position_ptr + lane, mask=there, other=0)
    first = lane - local
    before = position - local - 1
    ours = slot >= 0
    inside = ours & (before >= 0) & (local < WINDOW - 1)

    start = slot * WINDOW + before % WINDOW
    known = inside & (tl.load(tag_ptr + start, mask=inside, other=-1) == before)
    node = tl.load(automaton_ptr + start, mask=known, other=0)
    count = tl.load(count_ptr + start, mask=known, other=0)
    periods = tl.load(periods_ptr + start, mask=known, other=0)
    zone = tl.load(zone_ptr + start, mask=known, other=-1)
    bits = tl.zeros([BLOCK], tl.int32)
    period = tl.maximum(every_n, 1)

    for step in range(WINDOW - 1):
        reading = known & (step <= local)
        token = tl.load(token_ptr + first + step, mask=reading, other=0)
        known = known & (token >= 0) & (token < vocabulary)
        reading = reading & known
        kind = tl.load(token_class_ptr + token, mask=reading, other=0).to(tl.int32)
        cell = node * classes + kind
        read = tl.load(bits_ptr + cell, mask=reading, other=0).to(tl.int32)
        node = tl.where(reading, tl.load(next_ptr + cell, mask=reading, other=0).to(tl.int32), node)
        # A lane that is not reading has read = 0, which changes nothing below.
        count += tl.where((read & _COUNTED) != 0, 1, 0)
        zone = tl.where((read & _ZONE) != 0, before + 1 + step, zone)
        passed = count // period
        may_cut = ((read & _CUTTABLE) == _CUTTABLE) & (every_n > 0)
        read |= tl.where(may_cut & (passed > periods), _BOUNDARY, 0)
        periods = tl.where(may_cut, passed, periods)
        bits = tl.where(reading, read, bits)

    own = slot * WINDOW + position % WINDOW
    # A row that is lost takes its entry's tag away, or the next step would believe an older entry there.
    tl.store(tag_ptr + own, tl.where(known, position, -1), mask=inside)
    tl.store(automaton_ptr + own, node, mask=known)
    tl.store(count_ptr + own, count, mask=known)
    tl.store(periods_ptr + own, periods, mask=known)
    tl.store(zone_ptr + own, zone, mask=known)

    bits = tl.where(known, bits, tl.where(ours, _LOST, 0))
    tl.store(flags_out + lane, bits.to(tl.uint8), mask=there)
    tl.store(count_out + lane, tl.where(known, count, 0), mask=there)
    tl.store(zone_out + lane, tl.where(known, zone, -1), mask=there)

    wanted = (bits & _SCORED) == _SCORED
    up_to = tl.cumsum(wanted.to(tl.int32), 0)
    total = tl.sum(wanted.to(tl.int32), 0)
    # A permutation of the lanes, so each place is written once: wanted rows first, -1 from the others.
    place = tl.where(wanted, up_to - 1, total + lane - up_to)
    tl.store(compact_out + place, tl.where(wanted, lane, -1), mask=there)
    tl.store(n_out, total)
    if WITH_SCORE:
        tl.store(score_out + lane, tl.full([BLOCK], float("nan"), tl.float32), mask=there)
