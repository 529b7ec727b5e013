"""Loops in reasoning: found soon, at the same character however the text is cut; counting is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.loops import LoopDetector, LoopRule

START = "We are asked for the number of nuts. Ana has 3 bags with 4 nuts each, that is 12, and 5 more. "
SENTENCE = "Wait, let me check the sum again: 4+9=13. "


def found(text: str) -> int | None:
    loops = LoopDetector()
    loops.feed(text)
    return loops.found


@pytest.mark.parametrize(
    ("unit", "at_most"),
    [
        (SENTENCE, 7),
        ("a b c d e f ", 16),  # six tokens
        ("abcdef", 30),
        ("No. Yes. ", 20),
        ("let me see. Then x = 3. So let me see. Now y = 4. ", 7),
        ("Überprüfen wir es noch einmal: 4+9=13. ", 8),
        ("让我再检查一下这个总和。", 16),
        (SENTENCE + "Hmm, or is it 14? Let me add the digits one by one instead of all at once. " * 2, 5),
    ],
)
def test_r18_r44_a_cycle_is_found(unit: str, at_most: int) -> None:
    place = found(START + unit * 200)
    assert place is not None
    assert place <= len(START) + (at_most + 1) * len(unit) + 32


def test_r44_sentences_with_one_changing_number() -> None:
    rng = random.Random(1)
    drawn = "".join(f"Hmm, maybe the sum of the two is {rng.randint(1, 99)} after all. " for _ in range(30))
    assert found(START + drawn)
    counted = "".join(f"Attempt {n}: let me check the sum again, it is 13. " for n in range(1, 31))
    assert found(START + counted)
    decimal = "".join(f"Is the value near {n}.{n % 7} perhaps? No, try another one. " for n in (3, 1, 2) * 10)
    assert found(START + decimal)


@pytest.mark.parametrize(
    "text",
    [
        ", ".join(str(n) for n in range(1, 2000)),
        "".join(f"{n}. " for n in range(1, 500)),
        "".join(f"Item {n}.\n" for n in range(1, 300)),
        "".join(f"Line {n}: done\n" for n in range(1, 300)),
        "".join(f"{n} x 7 = {7 * n}\n" for n in range(1, 300)),
        "".join(f"For n = {n} the value of n squared is {n * n}.\n" for n in range(1, 300)),
        "".join(f"Check if 997 is divisible by {n}: no.\n" for n in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)),
        "-" * 300 + "\n" + "=" * 200,
        "0 0 0 0 0 0 0 0\n" * 20,
        "The same sentence, said twice. " * 4,
        "one, two, three, four, five, six, seven, eight, nine, ten. " * 2,
    ],
)
def test_r44_counting_and_lists_are_no_loop(text: str) -> None:
    assert found(START + text) is None


def test_a_loop_that_ends_before_it_is_one_is_forgotten() -> None:
    assert found((SENTENCE * 3 + START) * 1) is None
    assert (
        found(SENTENCE * 3 + START + "Now something else altogether follows here, and it goes on. " + START)
        is None
    )


@given(st.lists(st.integers(1, 40), max_size=60), st.sampled_from([SENTENCE, "ab1 cd2 ", "Try 3 times. "]))
def test_any_cutting_gives_the_same_place(sizes: list[int], unit: str) -> None:
    text = START + unit * 40
    loops, at = LoopDetector(), 0
    for size in sizes:
        loops.feed(text[at : at + size])
        at += size
    loops.feed(text[at:])
    assert loops.found == found(text)


@given(st.integers(0, 400))
def test_only_the_past_counts(cut: int) -> None:
    text = START + SENTENCE * 10
    whole, part = found(text), found(text[: len(START) + cut])
    assert part in (None, whole)


def test_the_rule_can_be_set() -> None:
    assert LoopDetector(LoopRule(repeats=20)).feed(SENTENCE * 10) is False
    assert LoopDetector(LoopRule(repeats=3, chars=40)).feed(SENTENCE * 5) is True
