"""Rows: what is trained on and what is only read."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("transformers")

from desist.data.reasoner.handoff import HANDOFF_WRITE
from desist.data.reasoner.problems import draw_problem, draw_problems
from desist.data.reasoner.rows import DECISION_WEIGHT, FastEncoder, RowMaker, prompt, text_of_rows
from desist.data.reasoner.stream import batches, draw_own_problem, draw_pool
from desist.data.reasoner.tokenizer import train_tokenizer
from desist.data.splits import problem_id, split_of

TOKENIZER = train_tokenizer(text_of_rows(draw_problems(1, 300), random.Random(1)), 600)
ENCODER = FastEncoder(TOKENIZER)


def test_prompt_is_read_only_and_decisions_weigh_more() -> None:
    maker = RowMaker(ENCODER, random.Random(2))
    for seed in range(30):
        problem = draw_problem(random.Random(seed))
        row = maker.full(problem)
        head = len(ENCODER.encode(prompt(problem.text))[0])
        assert len(row.ids) == len(row.weights)
        assert set(row.weights[:head]) == {0.0}
        assert DECISION_WEIGHT in row.weights
        assert min(row.weights[head:]) > 0


def test_a_cut_row_masks_the_hand_off_and_answers_with_what_was_reached() -> None:
    handoff = ENCODER.encode(HANDOFF_WRITE)[0]
    for seed in range(40):
        rng = random.Random(seed)
        problem = draw_problem(rng)
        row = RowMaker(ENCODER, rng).cut(problem)
        places = [i for i in range(len(row.ids)) if row.ids[i : i + len(handoff)] == handoff]
        if places:  # a trace without a boundary stays whole
            (at,) = places
            assert set(row.weights[at : at + len(handoff)]) == {0.0}
            assert row.ids[-1] == TOKENIZER.eos_token_id
            assert row.weights[-1] > 0


def test_batches_keep_every_row_and_the_split_holds() -> None:
    rng = random.Random(5)
    rows = draw_pool(RowMaker(ENCODER, rng), rng, 0.5, 60)
    made = batches(rows, rng, tokens=2000, pad=0)
    assert sum(len(batch.ids) for batch in made) == 60
    assert sum(batch.tokens for batch in made) == sum(len(row.ids) for row in rows)
    assert all(len(set(map(len, batch.ids))) == 1 for batch in made)
    assert all(split_of(problem_id(draw_own_problem(rng).text)) == "reasoner" for _ in range(50))
