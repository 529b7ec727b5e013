"""The guarantee itself, by simulation with a known truth; and that pooling cues does not give it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from desist.calibration.calibrate import choose
from desist.calibration.paths import Paths
from desist.calibration.plan import Plan
from desist.calibration.split import cue_level_threshold
from tests.fakes.traces import random_paths, true_risk

ALPHA, DELTA = 0.1, 0.1
DRAWS = 300
ALLOWED = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / DRAWS)


@pytest.fixture(scope="module")
def population() -> Paths:
    return random_paths(np.random.default_rng(0), 40_000)


def share_above_alpha(rule: Callable[[Paths], float | None], population: Paths, n: int) -> float:
    above = 0
    for draw in range(DRAWS):
        calibration = random_paths(np.random.default_rng([1, draw]), n)
        above += true_risk(population, rule(calibration)) > ALPHA
    return above / DRAWS


@pytest.mark.parametrize("method", ["pac", "ltt"])
def test_true_risk_exceeds_alpha_at_most_delta_of_the_time(method: str, population: Paths) -> None:
    plan = Plan(alpha=ALPHA, delta=DELTA, loss="consistency", scorer="probe", method=method)
    grid = np.linspace(1, 0, 101)
    assert share_above_alpha(lambda paths: choose(plan, paths, grid).lam, population, 150) <= ALLOWED


def test_cue_level_split_conformal_does_not_control_the_risk_of_a_trace(population: Paths) -> None:
    def rule(paths: Paths) -> float | None:
        return cue_level_threshold(paths, Plan(alpha=ALPHA, delta=DELTA, loss="harm", scorer="s").alpha)

    assert share_above_alpha(rule, population, 150) > 0.9


def test_learn_then_test_saves_more_than_pac_where_answers_wobble() -> None:
    calibration = random_paths(np.random.default_rng(5), 2000, break_rate=0.25, noise=2.0)
    saved = {}
    for method in ("pac", "ltt"):
        plan = Plan(alpha=0.1, delta=0.1, loss="consistency", scorer="probe", method=method)
        lam = choose(plan, calibration).lam
        assert lam is not None
        saved[method] = lam
    assert saved["ltt"] < saved["pac"]
