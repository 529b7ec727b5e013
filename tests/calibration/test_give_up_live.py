"""The stop machine gives up where calibration says that the policy does: one rule on both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.calibration import Certificate, calibrate
from desist.calibration.outcomes import policy_outcomes
from desist.calibration.paths import paths_of
from desist.calibration.plan import Plan
from desist.calibration.scorers import stored
from desist.calibration.signals import build_signals
from desist.calibration.two_sided import come_right, give_up_paths, two_sided_stops
from desist.controller.core import Control, GiveUp
from tests.fakes.traces import make_trace

# Multiples of 1/8: thresholds are met exactly, and smoothing by halves loses no bit.
EIGHTHS = st.integers(0, 8).map(lambda eighth: eighth / 8)


@given(
    scores=st.lists(st.lists(EIGHTHS, min_size=1, max_size=9), min_size=1, max_size=5),
    lam=EIGHTHS,
    above=EIGHTHS,
    patience=st.integers(1, 3),
    ema=st.sampled_from([1.0, 0.5]),
    warmup=st.sampled_from([0, 100, 175]),
    after=st.sampled_from([0, 50, 160]),
)
@settings(max_examples=200)
def test_machine_and_calibration_end_each_trace_alike(
    scores: list[list[float]], lam: float, above: float, patience: int, ema: float, warmup: int, after: int
) -> None:
    traces = [make_trace(row, [False] * len(row), name=str(n)) for n, row in enumerate(scores)]
    plan = Plan(
        alpha="0.1", delta="0.1", loss="consistency", scorer="probe", patience=patience, ema=ema,
        warmup_tokens=warmup, give_up_alpha="0.1", give_up_after=after,
    )  # fmt: skip
    signals = build_signals(traces, stored("probe"), "consistency")
    lower = give_up_paths(plan, signals, come_right(traces))
    ends, given_up = two_sided_stops(paths_of(signals, plan.shape()), lam, lower, above)
    policy = replace(plan.shape(lam), give_up=GiveUp(above, after))
    live = policy_outcomes(traces, Control(policy=policy))
    assert live.stop.tolist() == ends.tolist()
    assert live.given_up.tolist() == given_up.tolist()


def test_a_certificate_gives_up_live_as_often_as_it_counted() -> None:
    rng = np.random.default_rng(3)
    traces = []
    for number in range(400):
        hopeless = rng.random() < 0.3
        scores = rng.uniform(0.0, 0.2, 6) if hopeless else np.sort(rng.uniform(0.1, 1, 6))
        bad = [bool(score < 0.6) for score in scores]
        traces.append(make_trace(scores.tolist(), bad, name=str(number), full_correct=not hopeless))
    found = calibrate(
        traces, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=(), method="pac",
        give_up_alpha="0.1", give_up_after=120,
    )  # fmt: skip
    assert isinstance(found, Certificate)
    policy = found.policy()
    assert policy.give_up is not None
    assert policy.give_up.certified
    live = policy_outcomes(traces, Control(policy=policy))
    assert int(live.given_up.sum()) == found.n_given_up > 30
    alone = policy_outcomes(traces, Control(policy=replace(policy, give_up=None)))
    assert not alone.given_up.any()
    assert live.tokens.sum() < alone.tokens.sum()
    assert policy.uncertified().give_up == replace(policy.give_up, certified=False)
