"""Our policy against its rivals: each certified or matched on calibration traces, compared on test traces.

Every rival is a scorer plus a rule for its threshold, so all run through the same arrays, the same
accounting and the same tests. Paired: all policies see the same test traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from desist.calibration.accounting import oracle_rows, policy_row
from desist.calibration.calibrate import choose, refuse_overlap
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.intervals import mcnemar_p, ratio_difference
from desist.calibration.ltt import default_grid
from desist.calibration.outcomes import Outcomes, path_outcomes
from desist.calibration.paths import Paths, build_paths, restrict, sweep
from desist.calibration.plan import Plan
from desist.calibration.rival_rows import HOW, Rival, RivalRow, RivalTable
from desist.calibration.scorers import (
    TraceScorer,
    agreement,
    answer_confidence,
    first_cue,
    fit_position,
    position,
    random_stop,
    stated_agreement,
    stored,
)
from desist.calibration.split import cue_level_threshold
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["compare_rivals", "default_rivals"]


def default_rivals(
    ours: TraceScorer,
    calibration: Sequence[Trace],
    *,
    train: Iterable[Trace] = (),
    plan: Plan,
    extra: Sequence[Rival] = (),
) -> tuple[Rival, ...]:
    """The rivals of the standard table; stored scores other than ours are certified as rivals too."""
    names = sorted({name for trace in calibration for b in trace.boundaries for name in b.scores})
    learned = list(train)
    probe = fit_position(learned, plan.loss) if learned else position()
    return (
        Rival("cue-level split conformal", ours, "cue_level", shaped=True),
        Rival("fixed budget", position(), "equal_loss", note="cut at the first boundary past the budget"),
        Rival("random stop", random_stop(plan.seed), "equal_tokens"),
        Rival("first cue", first_cue(), "fixed"),
        Rival("position only", probe, "certified"),
        Rival("same answer, forced", agreement(), "certified", note="every forced answer is paid for"),
        Rival("same answer, read for free", agreement(free=True), "certified", note="no cost: a bound"),
        Rival("same answer, stated in the text", stated_agreement(), "certified"),
        Rival("forced-answer confidence", answer_confidence(), "certified", note="answers are paid for"),
        *(Rival(f"stored: {name}", stored(name), "certified") for name in names if name != ours.name),
        *extra,
    )


def compare_rivals(
    certified: Certificate | CannotCertify,
    calibration: Sequence[Trace],
    test: Sequence[Trace],
    *,
    scorer: TraceScorer | None = None,
    train: Iterable[Trace] = (),
    rivals: Sequence[Rival] | None = None,
    extra: Sequence[Rival] = (),
) -> RivalTable:
    """Compare the certified policy with its rivals on `test`, after calibrating them on `calibration`.

    `train`: traces for the position-only probe; without them it is the position itself. `rivals` replaces
    the standard list, `extra` adds to it. Raises CalibrationError where test and calibration share problems.
    """
    plan = Plan(**{name: getattr(certified, name) for name in Plan.model_fields})
    ours = scorer or stored(plan.scorer)
    learn = [restrict(trace, plan.kinds) for trace in calibration]
    held = [restrict(trace, plan.kinds) for trace in test]
    refuse_overlap(held, {trace.problem_id for trace in learn}, "calibration")
    chosen = rivals or default_rivals(
        ours, learn, train=[restrict(trace, plan.kinds) for trace in train], plan=plan, extra=extra
    )
    lam = certified.policy().lam
    mine = build_paths(learn, plan.shape(), ours, plan.loss, plan.truncated)
    theirs = build_paths(held, plan.shape(), ours, plan.loss, plan.truncated)
    base = path_outcomes(held, theirs, lam)
    oracles = oracle_rows(held)
    first = RivalRow(
        name=f"desist ({plan.scorer})",
        how="certified" if lam is not None else "cannot certify: never stops",
        threshold=lam,
        row=policy_row(
            plan.scorer,
            base,
            oracles=oracles,
            loss=plan.loss,
            alpha=plan.alpha,
            threshold=lam,
            seed=plan.seed,
        ),
        calibration_losses=_losses(mine, lam),
    )
    ours_lost = _lost(theirs, lam)
    rows = [_compare(rival, plan, learn, held, (mine, lam), (base, ours_lost), oracles) for rival in chosen]
    return RivalTable(plan.model_dump(mode="json"), len(learn), len(held), (first, *rows))


def _compare(
    rival: Rival,
    plan: Plan,
    learn: Sequence[Trace],
    held: Sequence[Trace],
    ours: tuple[Paths, float | None],
    base: tuple[Outcomes, np.ndarray],
    oracles: tuple[float | None, float | None],
) -> RivalRow:
    bare = plan.model_copy(update={"patience": 1, "warmup_tokens": 0, "ema": 1.0})
    shape = (plan if rival.shaped else bare).shape()
    try:
        fitted = build_paths(learn, shape, rival.scorer, plan.loss, plan.truncated)
        tested = build_paths(held, shape, rival.scorer, plan.loss, plan.truncated)
    except CalibrationError as failure:
        return RivalRow(rival.name, HOW[rival.rule], None, None, unavailable=f"not compared: {failure}")
    lam = _threshold(rival, plan, fitted, ours)
    # A policy that may never stop is not run at all: then its probes cost nothing either.
    outcomes = path_outcomes(held, tested, lam)
    if lam is None:
        outcomes = path_outcomes(held, build_paths(held, shape, first_cue(), plan.loss, plan.truncated), None)
    mine, ours_lost = base
    lost = _lost(tested, lam)
    worse, better = int((lost & ~ours_lost).sum()), int((ours_lost & ~lost).sum())
    how = HOW[rival.rule] if lam is not None else "nothing that saves can be certified: never stops"
    return RivalRow(
        name=rival.name,
        how=how,
        threshold=lam,
        row=policy_row(
            rival.name,
            outcomes,
            oracles=oracles,
            loss=plan.loss,
            alpha=plan.alpha,
            threshold=lam,
            note=rival.note,
            seed=plan.seed,
        ),
        calibration_losses=_losses(fitted, lam),
        worse=worse,
        better=better,
        mcnemar_p=mcnemar_p(worse, better),
        saved_more=float((mine.tokens - outcomes.tokens).sum() / max(1, mine.run_tokens.sum())),
        saved_more_interval=ratio_difference(mine.tokens, outcomes.tokens, mine.run_tokens, plan.seed),
    )


def _threshold(rival: Rival, plan: Plan, fitted: Paths, ours: tuple[Paths, float | None]) -> float | None:
    if rival.rule == "fixed":
        return rival.lam
    if rival.rule == "certified":
        lam = choose(plan, fitted).lam
        gains = lam is not None and sweep(fitted, np.asarray([lam])).saved[0] > 0
        return lam if gains else None  # what is safe but costs more than it saves is not run
    if rival.rule == "cue_level":
        return cue_level_threshold(fitted, plan.alpha)
    table = sweep(fitted, default_grid())
    paths, lam = ours
    if rival.rule == "equal_loss":
        allowed = np.flatnonzero(table.losses <= _losses(paths, lam))
        if len(allowed) == 0:
            return None
        return float(table.grid[allowed[int(np.argmin(table.tokens[allowed]))]])
    stops = paths.stops(lam)
    tokens = np.where(stops >= 0, paths.tokens[np.arange(len(paths)), stops], paths.full_tokens).sum()
    return float(table.grid[int(np.argmin(np.abs(table.tokens - tokens)))])


def _lost(paths: Paths, lam: float | None) -> np.ndarray:
    """Whether each trace has the loss at `lam`, [n] bool."""
    stops = paths.stops(lam)
    if paths.bad.shape[1] == 0:
        return np.zeros(len(paths), dtype=np.bool_)
    return np.asarray((stops >= 0) & paths.bad[np.arange(len(paths)), stops])


def _losses(paths: Paths, lam: float | None) -> int:
    return int(_lost(paths, lam).sum())
