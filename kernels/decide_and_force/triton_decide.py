"""The stop machine for all rows of a step in one program: one lane walks one row.

A lane goes through the rows of its request from the first one of the step up to its own, at most W - 1 of
them. That repeats a few steps of earlier rows, and saves passing states between lanes. Lanes start from the
entry before the first row and write the entries from the first row on; with no more rows than the window
takes these are different places, so no lane waits for another.

To be launched with enable_fp_fusion=False: smoothing is float64, rounded after each product and sum as in
Python, so that decisions are the host's, bit for bit.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from desist.kernels.boundary_score.flags import Flag
from desist.kernels.decide_and_force import reference, ring, settings, state
from desist.kernels.decide_and_force.ring import Field
from desist.kernels.decide_and_force.settings import MODES, Line
from desist.kernels.decide_and_force.state import Word
from desist.kernels.decide_and_force.verdict import RULES, Verdict

_BOUNDARY = tl.constexpr(int(Flag.BOUNDARY))
_THINKING = tl.constexpr(int(Flag.THINKING))
_WHOLE = tl.constexpr(int(Flag.WHOLE))
_MISSING = tl.constexpr(int(Flag.LOST))
_AT_BOUNDARY = tl.constexpr(int(Flag.BOUNDARY | Flag.THINKING))

_STOP = tl.constexpr(int(Verdict.STOP))
_HOLD = tl.constexpr(int(Verdict.HOLD))
_BY_SCORE = tl.constexpr(int(Verdict.SCORE))
_BY_BUDGET = tl.constexpr(int(Verdict.BUDGET))
_BY_ASKED = tl.constexpr(int(Verdict.ASKED))
_WITHDRAWN = tl.constexpr(int(Verdict.WITHDRAWN))
_STOPPED = tl.constexpr(int(Verdict.STOPPED))
_LOST = tl.constexpr(int(Verdict.LOST))
_NEWS = tl.constexpr(int(Verdict.STOP | Verdict.WITHDRAWN))
_RULES = tl.constexpr(int(RULES))

_LINE = tl.constexpr(settings.WORDS)
_PATIENCE = tl.constexpr(int(Line.PATIENCE))
_WARMUP = tl.constexpr(int(Line.WARMUP))
_SOFT = tl.constexpr(int(Line.SOFT))
_HARD = tl.constexpr(int(Line.HARD))
_MODE = tl.constexpr(int(Line.MODE))
_HANDOFF_LENGTH = tl.constexpr(int(Line.HANDOFF_LENGTH))
_ASKED_AT = tl.constexpr(int(Line.ASKED_AT))
_HOLDING = tl.constexpr(int(Line.HOLD))
_KNOWN = tl.constexpr(int(Line.KNOWN))
_LAM = tl.constexpr(settings.LAM)
_EMA = tl.constexpr(settings.EMA)
_OFF = tl.constexpr(MODES.index("off"))
_ACTIVE = tl.constexpr(MODES.index("active"))
_GRACE = tl.constexpr(reference.GRACE)

_ENTRY = tl.constexpr(state.WORDS)
_TAG = tl.constexpr(int(Word.POSITION))
_STREAK = tl.constexpr(int(Word.STREAK))
_STOP_AT = tl.constexpr(int(Word.STOP))
_RULE = tl.constexpr(int(Word.RULE))
_WAITING = tl.constexpr(int(Word.WAITING))
_KEPT_SMOOTHED = tl.constexpr(state.SMOOTHED)

_RECORD = tl.constexpr(ring.RECORD_WORDS)
_R_SLOT = tl.constexpr(int(Field.SLOT))
_R_POSITION = tl.constexpr(int(Field.POSITION))
_R_COUNT = tl.constexpr(int(Field.COUNT))
_R_VERDICT = tl.constexpr(int(Field.VERDICT))
_R_SCORE = tl.constexpr(int(Field.SCORE))
_R_SMOOTHED = tl.constexpr(ring.SMOOTHED)


@triton.jit
def _rules(between, ready, held, asked, limited, overdue, active):
    """The verdict where something is decided. `between` boundaries `ready` and `limited` do not count."""
    by_score = _BY_SCORE | tl.where(held, _HOLD, tl.where(active, _STOP, 0))
    by_budget = _BY_BUDGET | tl.where(held & (overdue == 0), _HOLD, _STOP)
    said = tl.where(ready, by_score, 0)
    said = tl.where(limited, by_budget, said)
    said = tl.where(between, tl.where(overdue, _BY_BUDGET | _STOP, 0), said)
    return tl.where(asked, _BY_ASKED | _STOP, said)


@triton.jit
def _append(
    words_ptr,
    doubles_ptr,
    head_ptr,
    capacity,
    told,
    slot,
    position,
    count,
    verdict,
    score,
    smoothed,
):
    """A record for each lane that is `told`, in the order of lanes."""
    head = tl.load(head_ptr)
    number = head + tl.cumsum(told.to(tl.int32), 0) - 1
    place = number % capacity
    line = words_ptr + place * _RECORD
    tl.store(line + _R_SLOT, slot, mask=told)
    tl.store(line + _R_POSITION, position, mask=told)
    tl.store(line + _R_COUNT, count, mask=told)
    tl.store(line + _R_VERDICT, verdict, mask=told)
    tl.store(line + _R_SCORE, score.to(tl.int32, bitcast=True), mask=told)
    tl.store(doubles_ptr + place * (_RECORD // 2) + _R_SMOOTHED, smoothed, mask=told)
    # Every warp has read the old number before one of them writes the new one.
    tl.debug_barrier()
    tl.store(head_ptr, head + tl.sum(told.to(tl.int32), 0))


# What changes from step to step must not make a new compilation.
@triton.jit(
    do_not_specialize=["n_rows", "window"],
    do_not_specialize_on_alignment=[
        "slot_ptr",
        "position_ptr",
        "token_ptr",
        "local_ptr",
        "flags_ptr",
        "count_ptr",
        "zone_ptr",
        "score_ptr",
    ],
)
def _decide(
    # rows of the step, [R]
    slot_ptr,
    position_ptr,
    token_ptr,
    local_ptr,
    flags_ptr,
    count_ptr,
    zone_ptr,
    score_ptr,
    n_rows,
    # settings: lines [S, 16] or [S, 8] doubles, ids [S, longest]
    settings_ptr,
    settings_doubles_ptr,
    handoff_ptr,
    longest,
    # entries [S, window, 8], or 4 doubles
    entries_ptr,
    entry_doubles_ptr,
    window,
    # records [capacity + 1, 8], or 4 doubles
    ring_ptr,
    ring_doubles_ptr,
    head_ptr,
    capacity,
    # results, [R]
    verdict_out,
    smoothed_out,
    forced_out,
    locked_out,
    BLOCK: tl.constexpr,
):
    """Grid (1,). BLOCK: a power of two >= n_rows."""
    lane = tl.arange(0, BLOCK)
    there = lane < n_rows
    slot = tl.load(slot_ptr + lane, mask=there, other=-1)
    local = tl.load(local_ptr + lane, mask=there, other=0)
    position = tl.load(position_ptr + lane, mask=there, other=0)
    first = lane - local
    before = position - local - 1
    ours = slot >= 0
    inside = ours & (before >= 0) & (local < window - 1)

    line = settings_ptr + slot * _LINE
    patience = tl.load(line + _PATIENCE, mask=ours, other=1)
    warmup = tl.load(line + _WARMUP, mask=ours, other=0)
    soft = tl.load(line + _SOFT, mask=ours, other=0)
    hard = tl.load(line + _HARD, mask=ours, other=0)
    mode = tl.load(line + _MODE, mask=ours, other=0)
    length = tl.load(line + _HANDOFF_LENGTH, mask=ours, other=0)
    asked_at = tl.load(line + _ASKED_AT, mask=ours, other=-1)
    holding = tl.load(line + _HOLDING, mask=ours, other=0)
    known_zone = tl.load(line + _KNOWN, mask=ours, other=0)
    doubles = settings_doubles_ptr + slot * (_LINE // 2)
    lam = tl.load(doubles + _LAM, mask=ours, other=0.0)
    ema = tl.load(doubles + _EMA, mask=ours, other=1.0)
    handoff = handoff_ptr + slot * longest

    place = slot * window + before % window
    entry = entries_ptr + place * _ENTRY
    known = inside & (tl.load(entry + _TAG, mask=inside, other=-1) == before)
    streak = tl.load(entry + _STREAK, mask=known, other=0)
    stop = tl.load(entry + _STOP_AT, mask=known, other=-1)
    rule = tl.load(entry + _RULE, mask=known, other=0)
    waiting = tl.load(entry + _WAITING, mask=known, other=0)
    kept = entry_doubles_ptr + place * (_ENTRY // 2) + _KEPT_SMOOTHED
    smoothed = tl.load(kept, mask=known, other=float("nan"))
    verdict = tl.zeros([BLOCK], tl.int32)

    for step in range(window - 1):
        reading = known & (step <= local)
        here = before + 1 + step
        bits = tl.load(flags_ptr + first + step, mask=reading, other=0).to(tl.int32)
        known = known & ((bits & _MISSING) == 0)
        reading = reading & known
        token = tl.load(token_ptr + first + step, mask=reading, other=0)
        count = tl.load(count_ptr + first + step, mask=reading, other=0)
        zone = tl.load(zone_ptr + first + step, mask=reading, other=-1)
        score = tl.load(score_ptr + first + step, mask=reading, other=0.0)

        # A stop in force: either this is the hand-off or what follows it, or the stop is taken back.
        stopped = reading & (stop >= 0)
        due = stopped & (here - stop - 1 < length)
        wanted = tl.load(handoff + here - stop - 1, mask=due, other=0)
        against = due & (token != wanted)
        stopped = stopped & (against == 0)
        said = tl.where(against, _WITHDRAWN, tl.where(stopped, _STOPPED | rule, 0))
        stop = tl.where(against, -1, stop)
        rule = tl.where(against, 0, rule)
        waiting = tl.where(against, 1, waiting)

        deciding = reading & (stopped == 0) & ((bits & _THINKING) != 0)
        boundary = deciding & ((bits & _BOUNDARY) != 0)
        evidence = boundary & (score == score)
        fresh = score.to(tl.float64)
        blended = ema * fresh + (1.0 - ema) * smoothed
        blended = tl.where(smoothed == smoothed, blended, fresh)
        smoothed = tl.where(evidence, blended, smoothed)
        above = (smoothed > lam) & (count >= warmup)
        streak = tl.where(evidence, tl.where(above, streak + 1, 0), streak)

        held = (holding != 0) | (zone > known_zone)
        new = _rules(
            boundary == 0,
            evidence & (streak >= patience) & (mode != _OFF),
            held,
            (asked_at >= 0) & ((held == 0) | (count >= asked_at + _GRACE)),
            count >= soft,
            count >= hard,
            mode == _ACTIVE,
        )
        may_cut = boundary | (deciding & ((bits & _WHOLE) != 0) & (waiting == 0))
        new = tl.where(may_cut, new, 0)
        stops = (new & _STOP) != 0
        stop = tl.where(stops, here, stop)
        rule = tl.where(stops, new & _RULES, rule)
        waiting = tl.where(boundary, 0, waiting)
        verdict = tl.where(reading, said | new, verdict)

    place = slot * window + position % window
    entry = entries_ptr + place * _ENTRY
    # A row that is lost takes its entry's tag away, or the next step would believe an older entry there.
    tl.store(entry + _TAG, tl.where(known, position, -1), mask=inside)
    tl.store(entry + _STREAK, streak, mask=known)
    tl.store(entry + _STOP_AT, stop, mask=known)
    tl.store(entry + _RULE, rule, mask=known)
    tl.store(entry + _WAITING, waiting, mask=known)
    tl.store(entry_doubles_ptr + place * (_ENTRY // 2) + _KEPT_SMOOTHED, smoothed, mask=known)

    verdict = tl.where(known, verdict, tl.where(ours, _LOST, 0))
    smoothed = tl.where(known, smoothed, float("nan"))
    stopped = known & (stop >= 0)
    due = stopped & (position - stop < length)
    forced = tl.load(handoff + position - stop, mask=due, other=-1)
    tl.store(verdict_out + lane, verdict.to(tl.uint8), mask=there)
    tl.store(smoothed_out + lane, smoothed, mask=there)
    tl.store(forced_out + lane, forced, mask=there)
    tl.store(locked_out + lane, (stopped & (due == 0)).to(tl.uint8), mask=there)

    bits = tl.load(flags_ptr + lane, mask=known, other=0).to(tl.int32)
    decided_at = ((verdict & _STOPPED) == 0) & ((bits & _AT_BOUNDARY) == _AT_BOUNDARY)
    told = tl.where(known, decided_at | ((verdict & _NEWS) != 0), ours & (local == 0))
    count = tl.load(count_ptr + lane, mask=told, other=0)
    score = tl.load(score_ptr + lane, mask=told, other=0.0)
    _append(
        ring_ptr,
        ring_doubles_ptr,
        head_ptr,
        capacity,
        told,
        slot,
        position,
        count,
        verdict,
        score,
        smoothed,
    )
