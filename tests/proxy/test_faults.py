"""Every fault of an upstream at every moment: the client sees the right answer or an error that says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fault_cells import Bench, Cell, Seen, all_cells, bench, judge, see

CELL = Cell("error event", "no cut", stream=True)


@pytest.fixture(scope="module")
def at() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.mark.parametrize("cell", [*all_cells(), *all_cells(ids=True)], ids=str)
def test_a_correct_answer_or_a_correct_error(at: Bench, cell: Cell) -> None:
    seen = see(cell, at)
    assert judge(cell, seen) is None, (seen, at.fake.paths)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(200, "", "word word ", "It is 36", "stop"), "a clean end, but content"),
        (Seen(200, "", "word ", "It is 36 🤖, " + "and " * 7 + "no more.", "stop"), "but reasoning"),
        (Seen(200, "", "word word ", "", "length"), "finish_reason"),
        (Seen(502, "broke", "", "It is 36"), "status 502, not 400"),
        (Seen(400, "ctx too long", "word word ", "It is 37"), "is not what was written"),
        (Seen(400, "ctx too long", "other", ""), "is not what the model thought"),
        (Seen(0, faults=("the connection broke",)), "the connection broke"),
    ],
)
def test_the_judge_finds_lost_text(seen: Seen, words: str) -> None:
    assert words in (judge(CELL, seen) or "")
