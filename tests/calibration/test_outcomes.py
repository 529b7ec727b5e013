from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from desist.calibration.accounting import Share, oracle_rows, policy_row, table_text
from desist.calibration.intervals import (
    clopper_pearson,
    excess_p,
    mcnemar_p,
    median_interval,
    paired_share,
    ratio_difference,
)
from desist.calibration.outcomes import oracle_outcomes, policy_outcomes
from desist.controller.core import Control, Policy
from tests.fakes.traces import make_trace, make_traces


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.data())
def test_intervals_and_tests_agree_with_scipy(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    expected = binomtest(count, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(clopper_pearson(count, n), (expected.low, expected.high), atol=1e-9)
    assert excess_p(count, n, 0.05) == pytest.approx(float(binom.sf(count - 1, n, 0.05)))
    assert mcnemar_p(count, n - count) == pytest.approx(float(binomtest(count, n).pvalue))


def test_the_limit_of_123_in_2000_that_the_targets_name() -> None:
    assert excess_p(123, 2000, 0.05) >= 0.01
    assert excess_p(124, 2000, 0.05) < 0.01


def test_bootstrap_intervals_hold_the_figure_and_follow_the_seed() -> None:
    low, high = paired_share(30, 10, 1000, seed=1)
    assert low < 0.02 < high
    assert paired_share(30, 10, 1000, seed=1) == (low, high)
    first, second = np.full(200, 60), np.full(200, 50)
    assert ratio_difference(first, second, np.full(200, 100)) == pytest.approx((0.1, 0.1))
    measured = np.random.default_rng(3).normal(0.97, 0.05, 41).tolist()
    low, high = median_interval(measured, seed=1)
    assert low < float(np.median(measured)) < high
    assert median_interval(measured, seed=1) == (low, high)
    assert median_interval([2.0]) == (2.0, 2.0)
    assert median_interval([]) == (-np.inf, np.inf)


def test_a_row_counts_tokens_answers_and_risks() -> None:
    traces = [
        make_trace([0.9, 0.1], [True, False], name="lost", gap=50, answer_tokens=10),  # stopped at 60 of 160
        make_trace([0.1, 0.9], [True, False], name="kept", gap=50, answer_tokens=10),  # stopped at 110 of 160
        make_trace([0.1, 0.1], [True, False], name="never", gap=50, answer_tokens=10),  # 160 of 160
    ]
    gained = make_trace([0.9], [True], name="gained", gap=50, answer_tokens=10, full_correct=False)
    gained = replace(gained, boundaries=(replace(gained.boundaries[0], correct=True),))  # 60 of 110
    outcomes = policy_outcomes([*traces, gained], Control(policy=Policy(lam=0.5)))
    row = policy_row("probe", outcomes, loss="harm", alpha=0.25, oracles=oracle_rows([*traces, gained]))
    assert outcomes.stop.tolist() == [0, 1, -1, 0]
    assert row.saved_fraction == pytest.approx(1 - (60 + 110 + 160 + 60) / (160 * 3 + 110))
    assert (row.accuracy_full, row.accuracy_stopped, row.accuracy_loss) == (0.75, 0.75, 0.0)
    assert (row.inconsistent, row.lost, row.gained, row.n_stopped, row.n_unknown) == (2, 1, 1, 3, 0)
    assert row.harm_risk == Share.of(1, 4)
    assert row.alpha_p == pytest.approx(1 - 0.75**4)
    assert row.oracle_first_fraction == pytest.approx(1 - (110 * 3 + 110) / 590)
    json.dumps(row.as_json())


def test_oracles_differ_where_a_right_answer_is_broken_again() -> None:
    trace = make_trace([0.1] * 4, [True, False, True, False])
    assert oracle_outcomes([trace], settled=False).stop.tolist() == [1]
    assert oracle_outcomes([trace], settled=True).stop.tolist() == [3]
    never = make_trace([0.1] * 2, [False, True], name="n")
    assert oracle_outcomes([never], settled=True).stop.tolist() == [-1]
    assert oracle_outcomes([make_trace([], [])], settled=True).tokens.tolist() == [60]


def test_oracles_lose_nothing_and_first_saves_at_least_as_much() -> None:
    traces = make_traces(50, 3)
    settled, first = oracle_rows(traces)
    assert settled is not None
    assert first is not None
    assert 0 < settled <= first
    assert (oracle_outcomes(traces, settled=True).consistent == 1).all()


def test_a_budget_between_boundaries_has_no_known_answer_and_no_invented_figures() -> None:
    trace = make_trace([0.1, 0.1], [False, False], gap=100)
    row = policy_row("budget", policy_outcomes([trace], Control(budget=120)))
    assert (row.n_unknown, row.accuracy_stopped, row.inconsistent, row.harm_risk) == (1, None, None, None)
    near = policy_outcomes([trace], Control(budget=120), budget_at="boundary")
    assert near.stop.tolist() == [1]


def test_tables_are_aligned_and_show_what_is_not_known() -> None:
    text = table_text(
        [{"policy": "a", "saved": 0.25}, {"policy": "longer", "saved": None}], ("policy", "saved")
    )
    assert text.splitlines() == ["policy   saved", "------  ------", "a       0.2500", "longer       -"]
