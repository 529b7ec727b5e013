"""Reports about methods, with their own inputs: layers, agreement, directions, ranks, smoothing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from desist.calibration.split import conformal_quantile, conformal_rank
from desist.controller import Boundary, Control, Policy, SameAnswer, StopMachine
from desist.data.errors import EngineError
from desist.data.schema import BoundaryRecord, Trace


@pytest.mark.parametrize(("tap", "index"), [(0, 0), (1, 1), (2, 2), (3, 3), (-1, 3), (-4, 0)])
def test_R54_layer_0_is_the_embeddings_and_minus_1_the_last(tap: int, index: int) -> None:
    pytest.importorskip("torch")
    from desist.proxy.engines.embedded.slots import SlotBatch
    from tests.fakes.tiny_model import tiny_model

    slots = SlotBatch(tiny_model().network, max_rows=1, taps=[tap])
    assert slots.taps == (index,)


@pytest.mark.parametrize("tap", [99, 4, -5])
def test_R54_a_layer_that_is_not_there_is_refused_with_those_that_are(tap: int) -> None:
    pytest.importorskip("torch")
    from desist.proxy.engines.embedded.slots import SlotBatch
    from tests.fakes.tiny_model import tiny_model

    with pytest.raises(EngineError, match=rf"tap {tap} does not exist: a model of 3 layers has taps 0 to 3"):
        SlotBatch(tiny_model().network, max_rows=1, taps=[0, 1, 2, -1, tap])


@pytest.mark.parametrize(
    ("answers", "stops"),
    [(["12", "15", "9"], False), (["", "", ""], False), (["12", " 12.", "12"], True)],
)
def test_R55_three_answers_must_agree_and_be_answers(answers: list[str], stops: bool) -> None:
    """Neither many probes nor no hesitation is enough: answers agree, by the real extraction and judge."""
    pytest.importorskip("desist.data.judging")
    boundaries = tuple(
        BoundaryRecord(
            index=n, position=10 * (n + 1), char=0, kind="cue",
            forced_answer=f"The answer is \\boxed{{{answer}}}" if answer else "",
        )
        for n, answer in enumerate(answers)
    )  # fmt: skip
    trace = Trace("t", "p", "m", "?", "...", "12", 100, 5, boundaries=boundaries)
    scorer = SameAnswer(3)
    assert (max(scorer(trace, record) or 0 for record in boundaries) >= 1) is stops


def test_R58_a_score_that_points_the_wrong_way_is_told() -> None:
    from desist.probes.metrics import auroc

    safe = np.array([0, 0, 1, 1, 1, 0, 1])
    score = np.array([0.1, 0.3, 0.8, 0.7, 0.9, 0.4, 0.35])
    right, turned = auroc(safe, score), auroc(safe, 1 - score)
    assert right is not None
    assert turned is not None
    assert right > 0.5 > turned
    assert math.isclose(right + turned, 1)


@pytest.mark.parametrize(
    ("alpha", "first"), [(Fraction(1, 10), 9), (Fraction(1, 20), 19), (Fraction(1, 100), 99)]
)
def test_R61_below_the_smallest_n_nothing_is_certified(alpha: Fraction, first: int) -> None:
    for n in (1, 5, 6, 9, 19, 20, first - 1, first):
        rank = conformal_rank(n, alpha)
        assert (rank is None) is (n < first)
        threshold = conformal_quantile(np.arange(1.0, n + 1), alpha)
        assert threshold == (math.inf if rank is None else rank)
    assert first == math.ceil(1 / alpha) - 1


@pytest.mark.parametrize(("alpha", "n", "rank"), [("0.05", 39, 38), ("0.18", 149, 123), ("0.172", 249, 207)])
def test_R62_the_cells_in_which_floats_are_off_by_one(alpha: str, n: int, rank: int) -> None:
    assert conformal_rank(n, Fraction(alpha)) == rank


@pytest.mark.parametrize(
    ("policy", "stop"),
    [
        (Policy(lam=0.9), 1),  # the first spike is enough
        (Policy(lam=0.9, patience=2), 5),  # 0.95 alone is not, 0.92 and 0.93 are: 0.9 is a tie
        (Policy(lam=0.9, patience=3), None),
        (Policy(lam=0.9, ema=0.3), None),  # smoothed, it never gets there
        (Policy(lam=0.75, ema=0.5), 4),
    ],
)
def test_R74_a_spike_and_a_level_that_is_held(policy: Policy, stop: int | None) -> None:
    machine = StopMachine(Control(policy=policy))
    for index, score in enumerate((0.2, 0.95, 0.3, 0.9, 0.92, 0.93)):
        machine.at_boundary(Boundary(index, 10 * (index + 1), "cue"), score)
    found = machine.stopped.index if machine.stopped else None
    assert found == stop
