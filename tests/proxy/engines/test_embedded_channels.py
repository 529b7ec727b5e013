"""Text of one channel: characters, stop strings, the end of an answer form."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy.answering.answer_form import AnswerForm
from desist.proxy.engines.embedded.channels import Channel

cuts = st.lists(st.integers(0, 60), max_size=12)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text(max_size=40), cuts)
def test_any_cut_gives_the_same_text(text: str, places: list[int]) -> None:
    channel = Channel()
    shown = [channel.feed(piece) for piece in pieces(text.encode(), places)]
    assert "".join(shown) + channel.finish() == text == channel.text
    assert channel.n_chars == len(text)


@given(st.text("ab\n", max_size=30), cuts)
def test_stop_strings_cut_before_their_first_occurrence(text: str, places: list[int]) -> None:
    channel = Channel(("ab", "ba\n"))
    shown = "".join(channel.feed(piece) for piece in pieces(text.encode(), places)) + channel.finish()
    found = [place for stop in ("ab", "ba\n") if (place := text.find(stop)) >= 0]
    assert shown == channel.text == (text[: min(found)] if found else text)


def test_half_a_character_is_held_back() -> None:
    channel = Channel()
    assert channel.feed("é".encode()[:1]) == ""
    assert channel.feed("é".encode()[1:]) == "é"
    assert channel.feed(b"\xff") == "�"
    channel.feed("é".encode()[:1])
    assert channel.finish() == "�"


def test_trim_drops_white_space_at_the_beginning_only() -> None:
    channel = Channel(trim=True)
    assert [channel.feed(part) for part in (b"\n", b" \n", b"\nso ", b"\n it")] == ["", "", "so ", "\n it"]


@pytest.mark.parametrize(
    ("suffix", "text", "end"),
    [
        ("}.", "34}. More", 4),
        ("}.", "34}", None),
        ("}.", "34} is", 3),
        ("}", "\\frac{1}{2}} and", 12),
        ("}", "\\frac{1}{2}", None),
        ("</a>", "34</a>!", 6),
        ("</a>", "34</a", None),
    ],
)
def test_end_of_an_answer_form(suffix: str, text: str, end: int | None) -> None:
    assert AnswerForm(suffix).end(text) == end


def test_cut_ends_the_text() -> None:
    channel = Channel(("zz",))
    channel.feed(b"12}. z")
    channel.cut(4)
    assert (channel.text, channel.feed(b"more"), channel.finish()) == ("12}.", "", "")


def test_a_token_that_is_not_shown_ends_a_character() -> None:
    channel = Channel()
    assert channel.feed("é".encode()[:1]) == ""
    assert (channel.skip(), channel.skip(), channel.feed(b"a")) == ("\ufffd", "", "a")
