"""The estimate before anything is spent: exact counts, and no cheerful answer where there is none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.calibration.onboarding import Lengths, Onboarding, estimate, lengths_of
from desist.calibration.pac import pac_rank
from desist.data.errors import CalibrationError
from tests.fakes.traces import make_traces

PLAN = Onboarding(Fraction(1, 20), Fraction(1, 20), Lengths(6000, 300, 40, 20), tokens_per_s=1000)


def test_the_count_that_nothing_lost_needs_is_59_at_a_twentieth() -> None:
    found = estimate(PLAN)
    assert (found.fewest, found.calibration, found.held_out, found.problems) == (59, 59, 15, 1074)
    assert (found.full_tokens, found.forced_tokens) == (1074 * 6300, 1074 * 40 * 20)
    assert found.hours == pytest.approx(found.tokens / 3.6e6)
    assert found.recalibration_tokens == 74 * (6300 + 800)
    assert found.net_saved == pytest.approx(0.99 * 0.25 * 6000 - 0.01 * 300)
    assert found.pays_after == -(-found.tokens // found.net_saved)


@given(st.floats(0, 0.049), st.integers(1, 6))
def test_problems_are_the_fewest_that_certify_the_expected_loss(loss: float, twentieths: int) -> None:
    alpha, delta = Fraction(twentieths, 20), Fraction(1, 20)
    needed = estimate(replace(PLAN, alpha=alpha, expected_loss=loss)).calibration
    assert needed is not None

    def enough(n: int) -> bool:
        rank = pac_rank(n, alpha, delta)
        return rank is not None and rank >= loss * n - 1e-9

    assert enough(needed)


def test_a_loss_that_is_not_below_alpha_is_never_certified() -> None:
    found = estimate(replace(PLAN, expected_loss=0.05))
    assert (found.calibration, found.tokens, found.pays_after) == (None, 0, None)


def test_what_saves_nothing_never_pays_and_audits_eat_savings() -> None:
    assert estimate(replace(PLAN, saved=0.0)).pays_after is None
    assert estimate(replace(PLAN, audits=1.0)).pays_after is None
    assert estimate(replace(PLAN, audits=0.2)).net_saved < estimate(PLAN).net_saved


def test_hidden_states_are_the_disk() -> None:
    bare, kept = estimate(PLAN), estimate(replace(PLAN, row_bytes=4 * 4096 * 4))
    assert kept.disk_bytes - bare.disk_bytes == 1074 * 40 * 65_536


def test_lengths_are_means_of_traces() -> None:
    traces = make_traces(20, seed=1)
    found = lengths_of(traces, forced=12)
    assert found.reasoning == sum(t.n_reasoning_tokens for t in traces) / 20
    assert found.boundaries == sum(len(t.boundaries) for t in traces) / 20
    with pytest.raises(CalibrationError, match="no traces"):
        lengths_of([])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"saved": 1.5}, "'saved' is 1.5"),
        ({"expected_loss": -0.1}, "'expected_loss'"),
        ({"training": -1}, "'training'"),
        ({"tokens_per_s": 0.0}, "'tokens_per_s'"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, float], name: str) -> None:
    with pytest.raises(CalibrationError, match=name):
        replace(PLAN, **change)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="'reasoning' is 0"):
        Lengths(0, 1, 1, 1)
