"""Hold-off zones: open and closed exactly where they should be, in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller.holdoff import HoldOff, held_places

OPEN = [
    "```", "Code:\n```python\nx = 1\n\ny = 2\n", "  ~~~\nx", "````\n```\n", "```\nx\n``` not closed\n",
    "So $$x", "$$\nx + y", "\\[ x", "a \\[ [1] ", "\\begin{align} x", "\\begin{align}\\begin{x}\\end{x}",
    "\\begin{align} x \\end{align", '{"a": 1', '{ "a": {"b": "}"}', '{\n  "a": [1,\n', '{"a": "\\"}',
    "$x$ and $$y",
]  # fmt: skip
CLOSED = [
    "", "plain", "```\nx\n```\n", "```\nx\n  ```\n\nThen", "a ``` b", "`x`", "```x``` inline", "$$x$$",
    "$5 and $6",
    "\\$$ x", "\\[ x \\]", "a \\\\[2pt] b", "\\begin{align} x \\end{align}", '{"a": 1}', '{"a": {"b": "}"}}',
    "\\frac{1}{2}", "{1, 2}", '\\text{"x"}', "the set {x}", "$$5 was paid\n\nThen", "\\[ lost\n \nThen",
    '{"a": "line\n', "``\n`",
]  # fmt: skip


def held(text: str) -> bool:
    zones = HoldOff()
    zones.feed(text)
    return zones.held


@pytest.mark.parametrize("text", OPEN)
def test_open_zone_holds(text: str) -> None:
    assert held(text)


@pytest.mark.parametrize("text", CLOSED)
def test_no_zone_does_not_hold(text: str) -> None:
    assert not held(text)


@pytest.mark.parametrize("text", ["```\n", "\\begin{align}", "$$", '{"a": '])
def test_a_zone_never_closed_holds_no_longer_than_its_limit(text: str) -> None:
    assert held(text + "x " * 100)
    assert not held(text + "x " * 9000)


PIECES = st.lists(
    st.sampled_from([*OPEN, *CLOSED, "\n", "$", "`", "{", "}", '"', "\\", "[", "]", "begin{", "word ", "é"]),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(PIECES)
def test_the_size_of_pieces_does_not_matter(parts: list[str]) -> None:
    text = "".join(parts)
    by_character = HoldOff()
    states = [by_character.held]
    for character in text:
        by_character.feed(character)
        states.append(by_character.held)
    assert held_places(text, range(len(text) + 1)) == tuple(states)
    assert held(text) == states[-1]


@settings(max_examples=60, deadline=None)
@given(PIECES, PIECES)
def test_a_copy_goes_its_own_way(before: list[str], after: list[str]) -> None:
    zones = HoldOff()
    zones.feed("".join(before))
    state = zones.held
    zones.copy().feed("".join(after))
    assert zones.held == state
