"""The fleet budget: mean tokens at the target, and never a policy outside the certified set."""

from __future__ import annotations

import json

import numpy as np
import pytest

from desist.calibration.fleet import Choice, FleetBudget
from desist.data.errors import CalibrationError

CHOICES = (Choice("harm-0.02", 0.02, 500), Choice("c-0.05", 0.05, 350), Choice("c-0.1", 0.1, 250))


def spend(fleet: FleetBudget, n: int, means: dict[str, float], seed: int = 0) -> tuple[float, set[str]]:
    rng = np.random.default_rng(seed)
    used, drawn = [], set()
    for _ in range(n):
        choice = fleet.draw(rng.random())
        drawn.add(choice.name)
        used.append(rng.gamma(4.0, means[choice.name] / 4))
        fleet.observe(choice.name, used[-1])
    return float(np.mean(used[n // 2 :])), drawn


@pytest.mark.parametrize("target", [280.0, 350.0, 450.0])
def test_the_mean_stays_at_the_target_also_where_first_guesses_and_traffic_are_wrong(target: float) -> None:
    names = {choice.name for choice in CHOICES}
    fleet = FleetBudget(CHOICES, target)
    means = {choice.name: choice.tokens * 1.02 for choice in CHOICES}
    mean, drawn = spend(fleet, 8000, means)
    assert mean == pytest.approx(target, rel=0.03)
    assert drawn <= names
    assert fleet.reachable
    if target == 350.0:  # longer traffic, still within reach
        mean, _ = spend(fleet, 8000, {name: 1.3 * value for name, value in means.items()}, seed=1)
        assert mean == pytest.approx(target, rel=0.03)


def test_a_target_out_of_reach_ends_at_the_cheapest_and_says_so() -> None:
    fleet = FleetBudget(CHOICES, 100)
    mean, _ = spend(fleet, 6000, {choice.name: choice.tokens for choice in CHOICES})
    assert mean == pytest.approx(250, rel=0.03)
    assert fleet.probabilities[2] > 0.99
    assert not fleet.reachable


def test_with_no_pressure_the_least_risk_is_preferred() -> None:
    shares = FleetBudget(CHOICES, 300).probabilities
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


def test_it_goes_on_after_a_restart() -> None:
    fleet = FleetBudget(CHOICES, 300)
    spend(fleet, 200, {choice.name: choice.tokens for choice in CHOICES})
    again = FleetBudget(CHOICES, 300)
    again.restore(json.loads(json.dumps(fleet.state())))
    assert again.state() == fleet.state()
    with pytest.raises(CalibrationError, match="other policies"):
        FleetBudget(CHOICES[:2], 300).restore(fleet.state())


def test_only_certified_policies_and_sound_numbers() -> None:
    with pytest.raises(CalibrationError, match="loose is not certified"):
        FleetBudget((*CHOICES, Choice("loose", 0.5, 50, certified=False)), 300)
    with pytest.raises(CalibrationError, match="no policy"):
        FleetBudget((), 300)
    with pytest.raises(CalibrationError, match="positive target"):
        FleetBudget(CHOICES, 0)
    with pytest.raises(CalibrationError, match="no such policy"):
        FleetBudget(CHOICES, 300).observe("x", 1)
