"""Cues: the table of spellings, word boundaries, and independence from how text is cut into tokens."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller.cues import CueMatcher, CueState
from desist.controller.profile import DEFAULT_CUES

# The reference, written by hand for the default cues: no state, whole text at once.
LOOSE = re.compile(r"(?<!\w)(?=(wait|hm{2,}|alternatively|let\sme\sdouble-check))", re.IGNORECASE)
WORDS = st.sampled_from(
    ["wait", "Wait", " WAIT", "await", "waiting", "waiter", "hmm", "Hmmmm", "hm", "altern", "atively",
     "Alternatively", "let me double-check", "let me", " double-", "check", "1", "_", "é", "ß", "\n\n",
     ", ", ".", " ", "等", "Let\nme double-check", "💡"]
)  # fmt: skip


def fire(pieces: list[str], cues: tuple[str, ...] = DEFAULT_CUES) -> list[tuple[int, str]]:
    """(piece, cue as written) of every hit."""
    matcher, state, hits = CueMatcher(cues), CueState(), []
    for place, piece in enumerate(pieces):
        state, found = matcher.feed(state, piece)
        if found is not None:
            hits.append((place, found))
    return hits


def reference(pieces: list[str]) -> set[int]:
    """Pieces in which a cue's last character stands, not followed by a word character in that piece."""
    text = "".join(pieces)
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    hits: set[int] = set()
    for match in LOOSE.finditer(text):
        start, longest = match.span(1)
        shortest = start + 3 if text[start].lower() == "h" else longest
        for end in range(shortest, longest + 1):  # a drawn-out hmm counts where it is first complete
            place = next(i for i, upper in enumerate(ends) if upper >= end)
            if end == ends[place] or not re.match(r"\w", text[end]):
                hits.add(place)
                break
    return hits


@pytest.mark.parametrize(
    ("pieces", "place"),
    [
        (["wait"], 0), ([" wait"], 0), (["Wait"], 0), ([" Wait"], 0), (["WAIT"], 0), ([" WAIT"], 0),
        ([".wait"], 0), ([".Wait"], 0), (["\n\nWait"], 0), (["\n\n", "Wait"], 1), ([", wait -"], 0),
        ([" hmm"], 0), (["Hmm"], 0), ([" Hmm"], 0), (["h", "mm"], 1), (["H", "mmm"], 1), ([" Hm", "m"], 1),
        ([" alternatively"], 0), (["Alternatively"], 0), ([" Alternatively"], 0), (["altern", "atively"], 1),
        (["Let", " me", " double", "-check"], 3), ([" let me double", "-", "check"], 2),
        (["let", "\nme", " double-check"], 2), (["w", "a", "i", "t"], 3), (["(", "wait", ")"], 1),
        (["a", " wait"], 1), (["don't", "-wait"], 1),
    ],
)  # fmt: skip
def test_every_spelling_fires_at_the_token_that_completes_it(pieces: list[str], place: int) -> None:
    assert [hit for hit, _ in fire(pieces)] == [place]


@pytest.mark.parametrize(
    "pieces",
    [[" await"], [" waiting"], [" waiter"], ["a", "wait"], [" a", "wait"], ["wait_for"], ["_wait"], ["2wait"],
     ["waits"], [" hm"], ["shmm"], ["éwait"], ["let me check"], ["double-check"], ["letme double-check"],
     ["wa", "iting"], ["alternative"]],
)  # fmt: skip
def test_other_words_never_fire(pieces: list[str]) -> None:
    assert fire(pieces) == []


def test_a_word_that_later_tokens_lengthen_has_fired_and_fires_once() -> None:
    assert [hit for hit, _ in fire(["wait", "ing", " room"])] == [0]
    assert [hit for hit, _ in fire(["Hmm", "m", "m", ",", " hmm"])] == [0, 4]


def test_a_word_longer_than_what_is_kept_is_still_one_word() -> None:
    kept = max(map(len, DEFAULT_CUES))
    assert fire(["s", "h" + "m" * (kept - 1), "m", "m wait"]) == [(3, "wait")]
    assert fire(["s", "h" + "m" * (kept - 1), "m wait"]) == [(2, "wait")]
    assert [hit for hit, _ in fire(["x ", "h" + "m" * (kept - 1), "m", "m"])] == [1]


def test_the_longest_cue_sees_the_character_before_it() -> None:
    longest = max(DEFAULT_CUES, key=len)
    assert fire(["x" + longest[:-1], longest[-1]]) == []
    assert [hit for hit, _ in fire(["some words before " + longest[:-1], longest[-1]])] == [1]


def test_the_cue_is_told_as_written() -> None:
    assert fire(["So. Hmmm, ", " Let me double-check"]) == [(0, "Hmmm"), (1, "Let me double-check")]


def test_scripts_without_spaces_have_no_word_boundary() -> None:
    assert [hit for hit, _ in fire(["我们", "等等", "再看"], ("等等",))] == [1]


def test_cues_may_overlap() -> None:
    assert [hit for hit, _ in fire(["a b", " c"], ("a b", "b c"))] == [0, 1]
    assert [hit for hit, _ in fire(["let me", " see"], ("let me", "let me see"))] == [0, 1]


@settings(deadline=None)
@given(st.lists(WORDS, max_size=12), st.data())
def test_any_cut_into_tokens_agrees_with_the_plain_text_reference(
    words: list[str], data: st.DataObject
) -> None:
    text = "".join(words)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges) if b > a]
    assert {place for place, _ in fire(pieces)} == reference(pieces)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=12))
def test_cuts_between_words_never_change_what_fires(words: list[str]) -> None:
    text = "".join(words)
    pieces = re.findall(r"\w+|\W", text)
    strict = [
        m.end()
        for m in re.finditer(r"(?<!\w)(?:wait|hm{2,}|alternatively|let\sme\sdouble-check)(?!\w)", text, re.I)
    ]
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    assert [ends[place] for place, _ in fire(pieces)] == strict
