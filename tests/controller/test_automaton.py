"""The token automaton says of every token what the detector says, for any profile, vocabulary and history."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector, ModelProfile, get_profile
from desist.controller.automaton import Standing, TokenFlag, automaton_for, compile_automaton, why_not
from desist.data.errors import ControlError
from desist.data.schema import BoundaryKind
from desist.kernels.boundary_score import Flag
from tests.controller.automata import assert_same, walk
from tests.fakes.vocabulary import FakeVocabulary

CUES = (
    "wait", "hmm", "let me", "let me see", "me wait", "that's", "a b", "b a", "aa", "等等", "等", "- no", "i",
    "σας", "4x", "_ok", "éé",
)  # fmt: skip
PIECES: tuple[str | bytes, ...] = (
    "Wait", " wa", "it", "t", "ing", "H", "hm", "m", "mm", "mmmmmmmm", "m,", "M", " let", "Let me", " me",
    "\nme", "e", " see", "s", "that", "'s", "\u2019s", "\u2019", "a", " b", "b a b", "aa", "A", "等", "等等",
    "等等等 ", "-", "- no", " no wait.\n\nx", "I", "i ", "\u0130", "\u0131", "Σ", "ας", "σας ", "ΣΑΣ",
    "\u017f", "\u212a", "4", "x", "4X", "_", "ok", "é", "É ", " ", "  ", "\n", "\n\n", "\n \n", "\r\n",
    " x\n", ".\n\n", "\t", ".", "...", "plain words", "12", "{", '"', "}", "$$", "\\[", "\\]", "```\n", "~",
    "", "\u3000", "\u00a0", "\ufffd", "let me see wait hmm", "\U0001f4a1", "</", "think", ">",
)  # fmt: skip
WIDE = ("\u2019", "等", "é", "É", "\U0001f4a1", "Σ", "\u3000", "\u00a0", "\u0130", "\ufffd", "我", "\u2018")
FRAGMENTS = tuple(
    prefix + data[start:end] + suffix
    for data in (c.encode() for c in WIDE)
    for start, end in ((0, 1), (0, 2), (1, len(data)), (1, 2), (2, len(data)))
    for prefix, suffix in product((b"", b"t", b" "), (b"", b"s"))
    if data[start:end] and end - start < len(data)
)
BROKEN = (
    b"\xff",
    b"\xed\xa0",
    b"\xed",
    b"\x80\x80\x80\x80",
    b"\xf4",
    b"\x90",
    b"\xc0\x80",
    b"\xe0",
    b"\xf0",
    b"\x9f\x92",
)
TAGS = ("<think>", "</think>", "<tool_call>", '<|{"|>')
TOOL = TAGS.index("<tool_call>")
CALLS = ("\n", " ", "<", "<f", "<1", "{", "[x", "f(", " tags")  # what may stand after it
KINDS: tuple[BoundaryKind, ...] = ("cue", "paragraph", "every_n", "token")
SLOW = list(HealthCheck)  # compiling takes its time


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    # Kind "token" hides all others, so most profiles do without.
    some = st.sets(st.sampled_from(KINDS), min_size=1).map(tuple)
    kinds = draw(st.sampled_from((("cue",), ("cue", "paragraph"), ("cue", "every_n"))) | some)
    return ModelProfile(
        "test",
        cues=tuple(draw(st.lists(st.sampled_from(CUES), min_size=1, max_size=4, unique=True))),
        kinds=kinds,
        every_n=draw(st.integers(1, 7)) if "every_n" in kinds else None,
        tool_call_open=draw(st.sampled_from(("<tool_call>", None))),
        tool_call_form=draw(st.sampled_from(("markup", "name", "any"))),
    )


def test_flags_are_the_kernels_flags() -> None:
    assert {flag.name: flag.value for flag in TokenFlag} == {
        flag.name: flag.value for flag in Flag if flag is not Flag.LOST
    }


def cue_text(rng: random.Random, cues: tuple[str, ...]) -> str:
    """Cues, beginnings and ends of cues, drawn out or not, with and without anything between them."""
    text = ""
    for _ in range(rng.randint(1, 12)):
        cue = rng.choice(cues)
        text += rng.choice(
            (cue, cue, cue + cue[-1] * rng.randint(1, 4), cue[: rng.randint(1, len(cue))], cue[1:])
        )
        text += rng.choice(("", " ", " ", ".", "\n", ".\n\n", "x", "\u2019", "\U0001f4a1"))
    return rng.choice((text, text.upper(), text.title(), text.replace("'", "\u2019")))


def cut_up(rng: random.Random, text: str) -> list[str | bytes]:
    """Text in pieces, most of them short, some of which end inside a character."""
    data, pieces = text.encode(), []
    while data:
        size = rng.choice((1, 1, 2, 2, 3, 4, 6, 9))
        pieces.append(data[:size])
        data = data[size:]
    return list(pieces)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(profiles(), st.randoms(use_true_random=False), st.booleans())
def test_tables_say_what_the_detector_says(profile: ModelProfile, rng: random.Random, thinking: bool) -> None:
    words = FakeVocabulary(TAGS)
    cut = [cue[i:j] for cue in profile.cues for i in range(len(cue)) for j in range(i + 1, len(cue) + 1)]
    pool: list[str | bytes] = [*PIECES, *FRAGMENTS, *BROKEN, *cut, *(f" {part}" for part in cut)]
    words.ids(*rng.sample(pool, rng.randint(1, 40)), *CALLS)
    written = [words.ids(*cut_up(rng, cue_text(rng, profile.cues))) for _ in range(8)]
    size = words.token("the last") + 3  # two ids with no token
    automaton = compile_automaton(profile, words, size)
    for token_ids in written:
        rare = rng.choice((0.0, 0.05, 0.3))
        for place, _ in enumerate(token_ids):
            if rng.random() < rare:
                token_ids[place] = rng.randrange(size if rng.random() < 0.7 else len(TAGS))
        for place in rng.sample(range(len(token_ids) + 1), min(rng.randint(0, 3), len(token_ids))):
            token_ids[place:place] = [TOOL, *words.ids(*rng.choices(CALLS, k=rng.randint(0, 3)))]
        if not thinking and rng.random() < 0.8:
            token_ids.insert(0, 0)
        assert_same(automaton, words, token_ids, rng.randint(0, len(token_ids)), thinking=thinking)


QWEN = get_profile("qwen3")


@pytest.mark.parametrize("cues", [("hmm", "let me see"), ("aa", "a b a"), ("\u7b49\u7b49", "wait"), ("hmm",)])
def test_a_cue_that_is_drawn_out_counts_once(cues: tuple[str, ...]) -> None:
    profile = ModelProfile("drawn", cues=cues, kinds=("cue",))
    words, drawn = FakeVocabulary(TAGS), cues[0]
    token_ids = words.ids(" ", *drawn, *(drawn[-1] for _ in range(30)), ".", drawn, drawn[-1] * 3, " ", drawn)
    automaton = compile_automaton(profile, words, max(token_ids) + 1)
    for middle in (2, 3, 5, len(token_ids) - 3):
        assert_same(automaton, words, token_ids, middle)


@pytest.mark.parametrize(
    ("cues", "pieces"),
    [
        (
            ("\u00e9\u00e9",),
            (" ", "\u00e9".encode() + b"\xc3", b"\xa9x a"),
        ),  # a cue ends inside a word of its token
        (("b a", "aa"), ("b ", "a", "a")),  # at the very beginning, a cue as long as what is remembered
    ],
)
def test_cues_over_pieces_of_any_cut(cues: tuple[str, ...], pieces: tuple[str | bytes, ...]) -> None:
    words, size = small(*pieces)
    automaton = compile_automaton(ModelProfile("cut", cues=cues, kinds=("cue",)), words, size)
    for middle in range(len(pieces) + 1):
        assert_same(automaton, words, words.ids(*pieces), middle)


def test_R35_R41_the_tables_wait_for_the_call() -> None:
    words, size = small("a", "\n", "<", "fun", "{", " tags", " " * 9)
    automaton = compile_automaton(QWEN, words, size)
    for after in (["\n", "<", "fun"], ["{"], [" tags", "a"], ["<", "{", "a"], ["\n"] * 10, [" " * 9, "{"]):
        token_ids = words.ids("a", "<tool_call>", *after)
        for middle in range(len(token_ids) + 1):
            assert_same(automaton, words, token_ids, middle)


def test_channels_are_refused() -> None:
    words, size = small("a")
    with pytest.raises(ControlError, match="'gpt-oss' writes channels, which an automaton cannot follow"):
        compile_automaton(get_profile("gpt-oss"), words, size)
    assert "channels" in (why_not(get_profile("gpt-oss"), words, size) or "")


def small(*pieces: str | bytes, tags: tuple[str, ...] = TAGS) -> tuple[FakeVocabulary, int]:
    words = FakeVocabulary(tags)
    return words, max([len(tags) - 1, *words.ids(*pieces)]) + 1


def test_a_standing_carries_counts_and_periods() -> None:
    words, size = small("a", "b", b"\xf0\x9f", b"\x92\xa1")
    profile = replace(QWEN, kinds=("every_n",), every_n=3)
    automaton = compile_automaton(profile, words, size)
    detector = BoundaryDetector(profile, words)
    for token_id in words.ids("a", b"\xf0\x9f", b"\x92\xa1", "b", b"\xf0\x9f"):
        detector.push(token_id)
    assert automaton.state_of(detector)[1:] == (5, 1, -1)
    detector.rewind(2)
    assert automaton.state_of(detector)[1:] == (2, 0, -1)


def test_kinds_and_every_n_may_be_given_in_place_of_the_profiles() -> None:
    words, size = small("a", " wait", ".\n\n")
    token_ids = words.ids("a", " wait", "a", ".\n\n", "a", "a")

    def found(automaton_profile: ModelProfile, **options: Any) -> list[int]:
        automaton = compile_automaton(automaton_profile, words, size, **options)
        start = automaton.state_of(BoundaryDetector(automaton.profile, words))
        return [
            n
            for n, (flags, _, _) in enumerate(walk(automaton, start, token_ids))
            if flags & TokenFlag.BOUNDARY
        ]

    assert found(QWEN) == [1, 3]
    assert found(QWEN, kinds=("paragraph",)) == [3]
    assert found(QWEN, kinds=("every_n",), every_n=4) == [3]
    assert found(QWEN, kinds=("cue", "every_n"), every_n=5) == [1, 4]


def test_closed_is_closed_and_not_begun_is_not() -> None:
    words, size = small("a", " wait")
    automaton = compile_automaton(QWEN, words, size)
    closed = BoundaryDetector(QWEN, words)
    closed.push(words.ids("</think>")[0])
    fresh = BoundaryDetector(QWEN, words, thinking=False)
    token_ids = words.ids("<think>", " wait", "</think>", "<think>", " wait")
    whole, thinking, all_four = 8, 8 | 2, 8 | 4 | 2 | 1
    assert [f for f, *_ in walk(automaton, automaton.state_of(closed), token_ids)] == [whole] * 5
    assert [f for f, *_ in walk(automaton, automaton.state_of(fresh), token_ids)] == [
        thinking, all_four, whole, whole, whole,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tags", "size", "change", "message"),
    [
        (("<think>", "</think>"), 9, {}, "tool_call_open .* is '<tool_call>', which is no token"),
        (("<think>", "<tool_call>"), 9, {}, "think_close .* is '</think>', which is no token"),
        (("</think>", "<think>", "<tool_call>"), 2, {}, "tool_call_open .* is token 2, and size is 2"),
        (TAGS, 9, {"cues": ("wait", "\ufffd!")}, r"the cue '\ufffd!' holds U\+FFFD"),
    ],
)
def test_what_no_automaton_can_follow_is_told_before_and_refused(
    tags: tuple[str, ...], size: int, change: dict[str, tuple[str, ...]], message: str
) -> None:
    words, _ = small("a", tags=tags)
    profile = replace(QWEN, **change)  # type: ignore[arg-type]
    with pytest.raises(ControlError, match=message) as refused:
        compile_automaton(profile, words, size)
    assert why_not(profile, words, size) == str(refused.value)
    assert automaton_for(profile, words, size) == str(refused.value)
    assert why_not(replace(QWEN, tool_call_open=None), FakeVocabulary(), 9) is None


def test_too_many_states_are_refused() -> None:
    words, size = small("w", "a", "i", "t")
    with pytest.raises(ControlError, match="more than 5 states"):
        compile_automaton(QWEN, words, size, max_states=5)


def test_one_automaton_is_kept_for_a_profile_and_a_vocabulary() -> None:
    words, size = small("a")
    kept = automaton_for(QWEN, words, size)
    assert not isinstance(kept, str)
    assert automaton_for(QWEN, words, size) is kept
    assert automaton_for(QWEN, small("a")[0], size) is not kept


def test_a_detector_of_another_profile_or_vocabulary_is_refused() -> None:
    words, size = small("a")
    automaton = compile_automaton(QWEN, words, size)
    assert automaton.state_of(BoundaryDetector(replace(QWEN, name="other"), words)) == Standing(
        automaton.state_of(BoundaryDetector(QWEN, words)).automaton
    )
    for change in ({"cues": ("but",)}, {"kinds": ("cue",)}, {"think_open": "<t>"}):
        with pytest.raises(ControlError, match="reads other tags, kinds, cues"):
            automaton.state_of(BoundaryDetector(replace(QWEN, **change), words))  # type: ignore[arg-type]
    foreign = BoundaryDetector(QWEN, words)
    foreign.push(words.token("wai"))  # made after the tables were
    with pytest.raises(ControlError, match="bytes that no tokens"):
        automaton.state_of(foreign)
