"""The methods of calibration as rules for `validity`, on one simulated population.

Each rule runs the very functions that make certificates; only the drawing of traces and the true risk are the
simulation's. Knows which promise each rule makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from desist.calibration.choose import choose, trace_scores
from desist.calibration.critical import critical_scores
from desist.calibration.pac import pac_rank, pac_threshold, smallest_n
from desist.calibration.pareto import choose_pareto
from desist.calibration.paths import Paths, paths_of
from desist.calibration.plan import Method, Plan, TraceScore
from desist.calibration.simulation import Population, Truth
from desist.calibration.split import conformal_quantile
from desist.calibration.two_sided import give_up_paths, give_up_threshold
from desist.calibration.validity import Draw, Outcome, Rule
from desist.calibration.weighted import kept_by_weight, weighted_thresholds
from desist.controller.core import Policy
from desist.data.errors import CalibrationError

__all__ = ["GRID", "invalid_rules", "mean_rules", "pac_rules", "shift_rules"]

GRID: NDArray[np.float64] = np.arange(200, -1, -1) / 200
"""Thresholds for the tests on a grid: coarser than the default one, which 500 draws a cell need not have."""

_SHAPES = (Policy(), Policy(ema=0.5))
_SHIFTED_HARD = Fraction(3, 5)  # share of hard problems in the new traffic


class _Scene:
    """One population seen through its paths, with the truth about each."""

    def __init__(self, population: Population, delta: Fraction) -> None:
        self.population, self.delta = population, delta
        self.consistency = paths_of(population.signals, Policy())
        self.truth = Truth.of(self.consistency)
        self._last: tuple[Draw, Paths] | None = None
        self._plans: dict[tuple[object, ...], Plan] = {}

    def drawn(self, rows: Draw) -> Paths:
        """The consistency paths of a draw; every rule of the scene sees the same draws in turn."""
        if self._last is None or self._last[0] is not rows:
            self._last = (rows, self.consistency.take(rows))
        return self._last[1]

    def plan(
        self, alpha: Fraction, method: Method = "ltt", score: TraceScore | None = None, **more: object
    ) -> Plan:
        """A plan for this scene."""
        key = (alpha, method, score, repr(more))
        if key not in self._plans:
            fields = {"loss": "consistency", "scorer": "simulated", "trace_score": score, **more}
            self._plans[key] = Plan.model_validate(
                {"alpha": alpha, "delta": self.delta, "method": method, **fields}
            )
        return self._plans[key]

    def outcome(self, lam: float | None, alpha: Fraction, truth: Truth | None = None) -> Outcome:
        """What the threshold `lam` means on the population; None never stops."""
        if lam is None:
            return Outcome(False, False)
        known, at = truth or self.truth, np.asarray([lam])
        broken = bool(known.exceeds(at, alpha)[0])
        return Outcome(True, broken, float(known.risk(at)[0]), float(known.saved(at)[0]))

    def plain(self, method: Method, score: TraceScore | None = None) -> Rule:
        """A method for one threshold and one loss."""

        def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
            plan = self.plan(alpha, method, score)
            if self.too_few(plan, len(rows)):
                return Outcome(False, False)
            return self.outcome(choose(plan, self.drawn(rows), GRID).lam, alpha)

        return rule

    def too_few(self, plan: Plan, n: int) -> bool:
        return plan.guarantee == "pac" and n < smallest_n(plan.alpha, plan.side_delta)


def pac_rules(population: Population, delta: Fraction) -> dict[str, Rule]:
    """The rules that promise: risk at most alpha in all but a share delta of calibrations."""
    scene = _Scene(population, delta)
    return {
        "pac, critical": scene.plain("pac"),
        "pac, maximum": scene.plain("pac", "maximum"),
        "ltt": scene.plain("ltt"),
        "ltt, critical": scene.plain("ltt", "critical"),
        "pareto": _pareto(scene),
        "ltt, two risks": _two_risks(scene, "ltt"),
        "pac, two risks": _two_risks(scene, "pac"),
        "ltt, token regret": _regret(scene),
        "pac, two-sided": _two_sided(scene),
        "pac, worst of two samples": _worst(scene),
        "pac, known shift": _known_shift(scene),
    }


def mean_rules(population: Population, delta: Fraction) -> dict[str, Rule]:
    """The rules that promise a mean over calibrations only."""
    scene = _Scene(population, delta)
    regret = paths_of(population.regretful(), Policy())
    truth = Truth.of(regret)

    def risk_control(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "crc", loss="token-regret")
        return scene.outcome(choose(plan, regret.take(rows), GRID).lam, alpha, truth)

    return {
        "split": scene.plain("split"),
        "crc": scene.plain("crc"),
        "crc, token regret": risk_control,
        "weighted": _weighted(scene),
    }


def invalid_rules(population: Population, delta: Fraction) -> dict[str, Rule]:
    """What does NOT keep the promise of `pac_rules`: to be seen failing."""
    scene = _Scene(population, delta)
    critical = critical_scores(scene.consistency)

    def shifted(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        m = pac_rank(len(rows), alpha, delta)
        place = 0 if m is None else m + 1  # one exceedance more than is allowed
        return scene.outcome(max(0.0, float(np.sort(critical[rows])[len(rows) - place - 1])), alpha)

    def plain_split(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        lam = conformal_quantile(critical[rows], alpha)
        return scene.outcome(max(0.0, lam) if np.isfinite(lam) or lam < 0 else None, alpha)

    return {
        "cue-level": scene.plain("cue-level"),
        "split conformal as if PAC": plain_split,
        "pac, rank shifted by one": shifted,
    }


def shift_rules(population: Population, delta: Fraction) -> dict[str, Rule]:
    """One threshold for a later traffic with more hard problems: weighted, and as if nothing had changed.

    The first promises a mean over calibrations; the second promises nothing there, and is to be seen failing.
    """
    scene = _Scene(population, delta)
    weights, outcome = _shifted(scene)
    heaviest = float(weights.max())

    def weighted(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "weighted", weights="known", max_weight=heaviest)
        lam = choose(plan, scene.drawn(rows), None, (), weights[rows]).lam
        return Outcome(False, False) if lam is None else outcome(lam, lam, alpha)

    def ignored(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        lam = choose(scene.plan(alpha, "split"), scene.drawn(rows)).lam
        return Outcome(False, False) if lam is None else outcome(lam, lam, alpha)

    return {"weighted, one threshold": weighted, "split, shift ignored": ignored}


def _pareto(scene: _Scene) -> Rule:
    shaped = {shape: paths_of(scene.population.signals, shape) for shape in _SHAPES}
    truths = {(shape.patience, shape.ema): Truth.of(paths) for shape, paths in shaped.items()}

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "pareto")
        orders = np.arange(len(rows)) < int(0.3 * len(rows))  # rows are drawn at random already
        if scene.too_few(plan, int((~orders).sum())):
            return Outcome(False, False)
        found = choose_pareto(plan, {s: [p.take(rows)] for s, p in shaped.items()}, orders, GRID)
        return scene.outcome(found.lam, alpha, truths[found.plan.patience, found.plan.ema])

    return rule


def _two_risks(scene: _Scene, method: Method) -> Rule:
    """Consistency at 2 alpha and harm at alpha, together."""
    harm = paths_of(scene.population.harmful(), Policy())
    truth = Truth.of(harm)

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(2 * alpha, method, risks=({"loss": "harm", "alpha": alpha},))
        if len(rows) < smallest_n(alpha, plan.delta):
            return Outcome(False, False)
        lam = choose(plan, scene.drawn(rows), GRID, [harm.take(rows)]).lam
        first, second = scene.outcome(lam, 2 * alpha), scene.outcome(lam, alpha, truth)
        return replace(second, broken=first.broken or second.broken)

    return rule


def _regret(scene: _Scene) -> Rule:
    regret = paths_of(scene.population.regretful(), Policy())
    truth = Truth.of(regret)

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "ltt", loss="token-regret")
        return scene.outcome(choose(plan, regret.take(rows), GRID).lam, alpha, truth)

    return rule


def _two_sided(scene: _Scene) -> Rule:
    """The stop at alpha and giving up at alpha, each with half of delta."""
    lower = give_up_paths(scene.plan(Fraction(1, 20)), scene.population.signals, scene.population.right)
    truth = Truth.of(lower)

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "pac", give_up_alpha=alpha)
        if scene.too_few(plan, len(rows)):
            return Outcome(False, False)
        up = scene.outcome(choose(plan, scene.drawn(rows)).lam, alpha)
        down = scene.outcome(give_up_threshold(plan, lower.take(rows)), alpha, truth)
        return replace(up, broken=up.broken or down.broken)

    return rule


def _worst(scene: _Scene) -> Rule:
    """Problems of two traces each, lost when either is: trace i and the one half a population on."""
    half = len(scene.population) // 2
    critical = critical_scores(scene.consistency)
    worst = np.sort(np.maximum(critical[:half], critical[half : 2 * half]))

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        plan = scene.plan(alpha, "pac", samples="worst")
        if scene.too_few(plan, len(rows)):
            return Outcome(False, False)
        first = rows % half
        paths = scene.consistency.take(np.concatenate([first, first + half]))
        pairs = replace(paths, problem=np.tile(np.arange(len(rows)), 2))
        lam = choose(plan, pairs).lam
        if lam is None:
            return Outcome(False, False)
        above = half - int(np.searchsorted(worst, lam, side="right"))
        saved = float(scene.truth.saved(np.asarray([lam]))[0])
        return Outcome(True, Fraction(above, half) > alpha, above / half, saved)

    return rule


def _shifted(scene: _Scene) -> tuple[NDArray[np.float64], Callable[[float, float, Fraction], Outcome]]:
    """Weights of the population for a traffic with more hard problems, and the truth about that traffic."""
    hard = scene.population.hard
    share = Fraction(int(hard.sum()), len(hard))
    weights = np.where(hard, float(_SHIFTED_HARD / share), float((1 - _SHIFTED_HARD) / (1 - share)))
    parts = [Truth.of(scene.consistency.take(np.flatnonzero(mask))) for mask in (hard, ~hard)]

    def outcome(on_hard: float, on_easy: float, alpha: Fraction) -> Outcome:
        lams = [np.asarray([on_hard]), np.asarray([on_easy])]
        shares = [Fraction(int(part.losses(lam)[0]), part.n) for part, lam in zip(parts, lams, strict=True)]
        risk = _SHIFTED_HARD * shares[0] + (1 - _SHIFTED_HARD) * shares[1]
        return Outcome(True, risk > alpha, float(risk), float(parts[1].saved(lams[1])[0]))

    return weights, outcome


def _known_shift(scene: _Scene) -> Rule:
    weights, outcome = _shifted(scene)
    bound = float(weights.max())
    critical = trace_scores(scene.plan(Fraction(1, 20), "pac"), scene.consistency)

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        kept = rows[kept_by_weight(weights[rows], bound, rng)]
        lam = pac_threshold(critical[kept], alpha, scene.delta)
        return Outcome(False, False) if lam is None else outcome(lam, lam, alpha)

    return rule


def _weighted(scene: _Scene) -> Rule:
    weights, outcome = _shifted(scene)
    critical = critical_scores(scene.consistency)
    heavy, light = float(weights.max()), float(weights.min())

    def rule(rows: Draw, alpha: Fraction, rng: np.random.Generator) -> Outcome:
        try:
            found = weighted_thresholds(critical[rows], weights[rows], alpha)
        except CalibrationError:  # too few effective problems
            return Outcome(False, False)
        return outcome(found.threshold(heavy), found.threshold(light), alpha)

    return rule
