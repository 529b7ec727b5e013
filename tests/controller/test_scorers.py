"""Scorers on saved traces: what they read, what they cost, what they need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import (
    CueCount,
    FirstCue,
    ForcedConfidence,
    Position,
    RandomScore,
    SameAnswer,
    Scorer,
    StoredScore,
    check_offers,
)
from desist.data.errors import ControlError, NotOffered
from desist.data.schema import BoundaryRecord, Trace


def same(k: int) -> SameAnswer:
    return SameAnswer(k, extract=lambda text: text.strip() or None, equal=lambda a, b: a == b)


def trace(answers: list[str | None], kinds: list[str] | None = None) -> Trace:
    boundaries = tuple(
        BoundaryRecord(
            index=i,
            position=10 * (i + 1),
            char=0,
            kind=(kinds or ["cue"] * len(answers))[i],  # type: ignore[arg-type]
            scores={"probe": 0.1 * i},
            forced_answer=answer,
            forced_confidence=None if answer is None else 0.5,
            forced_tokens=None if answer is None else 7,
        )
        for i, answer in enumerate(answers)
    )
    return Trace("t", "p", "m", "?", "...", "4", 100, 5, boundaries=boundaries)


def scores(scorer: Scorer, of: Trace) -> list[float | None]:
    return [scorer(of, record) for record in of.boundaries]


SCORERS: list[Scorer] = [
    StoredScore("probe"), Position(), CueCount(), FirstCue(), RandomScore(3), ForcedConfidence(),
    same(2), same(3),
]  # fmt: skip


def test_R55_same_answer_counts_answers_in_a_row() -> None:
    assert scores(same(2), trace(["4", "4 ", "5", "5", "5"])) == [0, 1, 0, 1, 1]
    assert scores(same(3), trace(["4", "4", "5", "5", "5"])) == [0, 0, 0, 0, 1]
    assert scores(same(1), trace(["4", "", "5"])) == [1, 0, 1]
    assert scores(same(2), trace(["", "", None, "4", "4"])) == [0, 0, None, 0, 1]


def test_R55_same_answer_with_the_real_extraction_and_judge() -> None:
    pytest.importorskip("desist.data.judging")
    written = ["The answer is \\boxed{1/2}.", "So \\boxed{0.5}", "So \\boxed{3}"]
    assert scores(SameAnswer(2), trace(list(written))) == [0, 1, 0]


def test_R60_trials_cost_every_earlier_forced_answer() -> None:
    of = trace(["4", "4", None, "5"])
    for scorer in (same(2), ForcedConfidence()):
        assert [scorer.cost(of, record) for record in of.boundaries] == [0, 7, 14, 14]
        assert scorer.cost(of, None) == 21
    assert StoredScore("probe").cost(of, None) == 0


def test_controls() -> None:
    of = trace(["1", "2", "3"], ["paragraph", "cue", "cue"])
    assert scores(FirstCue(), of) == [0, 1, 1]
    assert scores(CueCount(scale=1), of) == [0, 0.5, 2 / 3]
    assert scores(Position(scale=10), of) == [0.5, 2 / 3, 0.75]
    assert scores(StoredScore("none"), of) == [None] * 3


def test_random_is_fixed_by_seed_and_roughly_uniform() -> None:
    of = trace(["1"] * 400)
    drawn = [score or 0.0 for score in scores(RandomScore(1), of)]
    assert drawn == scores(RandomScore(1), of)
    assert drawn != scores(RandomScore(2), of)
    assert abs(sum(drawn) / 400 - 0.5) < 0.06
    assert len(set(drawn)) == 400


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["4", "5", "", None]), min_size=1, max_size=8),
    st.data(),
)
def test_scores_read_only_the_past(answers: list[str | None], data: st.DataObject) -> None:
    whole = trace(answers)
    cut = data.draw(st.integers(1, len(answers)))
    part = replace(whole, boundaries=whole.boundaries[:cut])
    for scorer in SCORERS:
        values = scores(scorer, whole)
        assert scores(scorer, part) == values[:cut]
        assert all(value is None or 0 <= value <= 1 for value in values)
        spent = [scorer.cost(whole, record) for record in whole.boundaries]
        assert [scorer.cost(part, record) for record in part.boundaries] == spent[:cut]


def test_a_missing_offer_is_named() -> None:
    check_offers(same(2).needs, {"text", "forced_answer"})
    with pytest.raises(NotOffered, match=r"same_answer_2 needs forced_answer.*it offers text"):
        check_offers(same(2).needs, {"text"}, "same_answer_2")


def test_k_zero_is_refused() -> None:
    with pytest.raises(ControlError, match="k = 0"):
        SameAnswer(0)
