"""Figures computed from finished traces."""

from __future__ import annotations

import pytest

from desist.data.reasoner.measure import (
    CueView,
    TraceResult,
    answers_reached,
    auroc,
    headroom,
    measure,
    same_answer_twice,
    written_value,
)

TEXT = (
    "20 + 15 = 35. So the answer is 35, wait. 20 + 14 = 34. That makes 34. Hmm, 1 + 1 = 2. The answer is 34."
)


def test_answers_are_found_in_every_phrasing() -> None:
    assert [reached.value for reached in answers_reached(TEXT)] == ["35", "34", "34"]
    assert answers_reached("So the answer is 3")
    assert not answers_reached("27 + 15 = 42.")
    assert written_value("It is \\boxed{34}.") == "34"
    assert written_value("34") is None


def test_same_answer_twice_counts_the_latest_answer() -> None:
    assert same_answer_twice(TEXT)
    assert not same_answer_twice(TEXT[: TEXT.index("Hmm")])
    assert not same_answer_twice("")


def test_headroom_starts_where_the_last_answer_first_stands() -> None:
    at = TEXT.index("That makes 34") + len("That makes 34")
    assert headroom(TEXT) == pytest.approx(1 - at / len(TEXT))
    assert headroom("no answer") == 0.0


def test_measure_counts_and_compares() -> None:
    pytest.importorskip("sklearn")
    traces = [TraceResult("34", TEXT, "34"), TraceResult("35", TEXT, None, truncated=True)]
    cues = [CueView(str(i), "p", TEXT if i % 2 else TEXT[:50], bool(i % 2)) for i in range(20)]
    measured = measure(traces, cues)
    assert measured.accuracy_full == 0.5
    assert measured.accuracy_first == 0.5
    assert measured.truncated == 0.5
    assert measured.auroc_same_twice == 1.0
    assert measured.cues_per_trace == 10
    assert auroc([True, True], [0.1, 0.2]) != auroc([True, True], [0.1, 0.2])
