"""The think-tag splitter: any chunking of a text gives the same reasoning and content."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from desist.proxy.reasoning import ThinkSplitter, split_reasoning

PARTS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<", "</", "thi", "nk>", " ", "\n", "\n\n", "abc", "2 < 3",
         "<tool_call>", "{", "🤖",
         "</think", "<tool_", "call>", "</thin", ">"]
    ),
    max_size=12,
)  # fmt: skip


def cut(text: str, borders: list[int]) -> list[str]:
    places = sorted({min(border, len(text)) for border in borders} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(PARTS, st.lists(st.integers(0, 60), max_size=12), st.booleans(), st.booleans())
def test_any_chunking_gives_the_same(
    parts: list[str], borders: list[int], opened: bool, closed: bool
) -> None:
    text = "".join(parts)

    def new() -> ThinkSplitter:
        return ThinkSplitter(opened=opened, closed=closed and not opened)

    whole = split_reasoning([text], new())
    assert split_reasoning(cut(text, borders), new()) == whole
    assert split_reasoning(list(text), new()) == whole


@given(st.text(max_size=40))
def test_text_without_tags_is_content_unchanged(text: str) -> None:
    assert split_reasoning(list(text)) == ("", text)


@given(st.text(alphabet="ab <>/think\n", max_size=30), st.text(alphabet="ab <>\n", max_size=30))
def test_nothing_is_lost_but_tags_and_white_space(reasoning: str, content: str) -> None:
    assume("think>" not in reasoning and "think>" not in content)
    got = split_reasoning(list(f"<think>{reasoning}</think>{content}"))
    assert "".join("".join(got).split()) == "".join(f"{reasoning}{content}".split())


@pytest.mark.parametrize(
    ("chunks", "reasoning", "content"),
    [
        (["<think>plan done.</think>The answer", " is 8."], "plan done.", "The answer is 8."),
        (["<think>abc</thi"], "abc</thi", ""),
        (["<think>a </thin", " air is cold</think>ok"], "a </thin air is cold", "ok"),
        (["<think>2 <", " 3</think>yes"], "2 < 3", "yes"),
        (["<think>\n\n</think>\n\n", "hi"], "", "hi"),
        (["0.2", " is bigger."], "", "0.2 is bigger."),
        (["<think>x</think>", "\n</think>\n\n", "Paris"], "x", "Paris"),
        (
            ["<think>x</think>", "Use `<think>`: `<think>x</think>`."],
            "x",
            "Use `<think>`: `<think>x</think>`.",
        ),
        (
            ['<think>need <tool_call>{"name":"w"}</tool_call></think>'],
            "need",
            '<tool_call>{"name":"w"}</tool_call>',
        ),
        (["<think>some formats use <tool_call> tags</think>ok"], "some formats use <tool_call> tags", "ok"),
    ],
)
def test_cases(chunks: list[str], reasoning: str, content: str) -> None:
    assert split_reasoning(chunks) == (reasoning, content)
    assert split_reasoning(list("".join(chunks))) == (reasoning, content)


def test_block_opened_by_the_prompt() -> None:
    assert split_reasoning(["plan it", "</think>", "42"], ThinkSplitter(opened=True)) == ("plan it", "42")


def test_other_tags() -> None:
    splitter = ThinkSplitter("◁think▷", "◁/think▷")
    assert split_reasoning(["◁thi", "nk▷so", "◁/think", "▷ok"], splitter) == ("so", "ok")


def test_chunk_borders_are_kept_where_no_tag_forces_a_cut() -> None:
    splitter = ThinkSplitter()
    splitter.feed("<think>")
    assert [piece.text for chunk in ("Let me", " check ", "it") for piece in splitter.feed(chunk)] == [
        "Let me", " check", " it",
    ]  # fmt: skip


def test_empty_tags_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        ThinkSplitter("", "</think>")
