"""Boundaries on token ids: kinds, positions, tags, prompts, and rebuilding the state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import Boundary, BoundaryDetector, ModelProfile, get_profile
from desist.data.schema import BoundaryKind
from tests.fakes.vocabulary import FakeVocabulary

QWEN = get_profile("qwen3")
USER = ["<|im_start|>", "user", "\n", "Add", " 2", "<|im_end|>", "\n"]
TURN = ["<|im_start|>", "assistant", "\n"]


def profile(*kinds: BoundaryKind, every_n: int | None = None) -> ModelProfile:
    return ModelProfile("test", kinds=kinds or ("cue", "paragraph"), every_n=every_n)


def read(pieces: Sequence[str | bytes], chosen: ModelProfile | None = None) -> list[tuple[int, str, str]]:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector(chosen or profile(), vocabulary)
    found = [detector.push(i) for i in vocabulary.ids(*pieces)]
    assert [b.index for b in found if b] == list(range(sum(b is not None for b in found)))
    return [(b.position, b.kind, b.text) for b in found if b]


def test_cue_is_kept_and_position_counts_it() -> None:
    assert read(["So", " 4", ".", " Wait", ","]) == [(4, "cue", "Wait")]


@pytest.mark.parametrize(
    ("pieces", "position"),
    [(["x", ".\n\n", "y"], 2), (["x", "\n", "\n", "y"], 3), (["x", "\n\n\n\n", "\n\n", "y"], 2),
     (["x", "\n \n", "y"], 2), (["x.\n", "\t", "\ny"], 3), (["x", "\r\n\r\n"], 2)],
)  # fmt: skip
def test_paragraph_end_fires_once_where_it_completes(pieces: list[str], position: int) -> None:
    assert read(pieces) == [(position, "paragraph", "\n\n")]


def test_blank_lines_before_any_text_are_no_paragraph() -> None:
    assert read(["\n", "\n", "\n\n", "x", "\n", "y"]) == []


def test_one_boundary_where_a_token_is_both() -> None:
    assert read(["x", "\n\nWait", ", y"]) == [(2, "cue", "Wait")]


def test_every_n_and_token() -> None:
    pieces = ["a", " wait", "b", "c", "d", "e.\n\n", "f"]
    assert read(pieces, profile("every_n", every_n=3)) == [(3, "every_n", ""), (6, "every_n", "")]
    kinds = [kind for _, kind, _ in read(pieces, profile("token", "cue", "paragraph", "every_n", every_n=3))]
    assert kinds == ["token", "cue", "every_n", "token", "token", "paragraph", "token"]


def test_no_boundary_inside_a_character() -> None:
    bulb = "💡".encode()
    found = read(["a", bulb[:2], bulb[2:], "b"], profile("token"))
    assert [position for position, _, _ in found] == [1, 3, 4]
    assert read(["a", bulb[:1], bulb[1:3], bulb[3:], "b"], profile("every_n", every_n=2)) == [
        (4, "every_n", "")
    ]


def test_close_tag_ends_thinking_and_is_not_counted() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector(QWEN, vocabulary)
    for token_id in vocabulary.ids("a", "b", "</think>", "\n\n"):
        assert detector.push(token_id) is None
    assert (detector.position, detector.thinking, detector.closed, detector.reopened) == (
        2,
        False,
        True,
        False,
    )
    detector.push(vocabulary.ids("<think>")[0])
    assert detector.thinking
    assert detector.reopened
    assert detector.push(vocabulary.token(" Wait")) == Boundary(0, 3, "cue", "Wait")


@pytest.mark.parametrize("tags", [("<think>", "</think>", "<tool_call>"), ()])
def test_R31_a_tag_in_the_answer_opens_nothing(tags: tuple[str, ...]) -> None:
    vocabulary = FakeVocabulary(tags=tags)
    for opened in (True, False):
        detector = BoundaryDetector(QWEN, vocabulary, thinking=opened)
        pieces = ["a", "</think>", "\n\n", "Use", " `", "<think>", "`"] if opened else ["Use", "<think>", "x"]
        for token_id in vocabulary.ids(*pieces, " Wait"):
            assert detector.push(token_id) is None
        assert (detector.thinking, detector.closed, detector.reopened) == (False, opened, False)


def test_text_does_not_join_over_tags() -> None:
    assert read(["x", " Wa", "</think>", "<think>", "it", "\n", "</think>", "<think>", "\n"]) == []


def test_spelled_tags_are_text_where_the_vocabulary_has_the_tag() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector(QWEN, vocabulary)
    for token_id in vocabulary.ids("a", "</", "think", ">", "b"):
        detector.push(token_id)
    detector.push(vocabulary.token("</think>"))  # an ordinary token of the same spelling
    assert detector.thinking
    assert detector.position == 6


@pytest.mark.parametrize(
    ("pieces", "position"),
    [(["a", "\n", "</", "think", ">"], 2), (["a", ".</", "think", ">\n\n"], 2), (["a", "</think>\n\nThe"], 1),
     (["a", " b</think", ">"], 2), (["<", "<", "/think", ">"], 1), (["</think>"], 0),
     (["</", "think", ">"], 0)],
)  # fmt: skip
def test_close_tag_spelled_by_tokens(pieces: list[str], position: int) -> None:
    vocabulary = FakeVocabulary(tags=())
    detector = BoundaryDetector(profile("token"), vocabulary)
    for token_id in vocabulary.ids(*pieces):
        detector.push(token_id)
    assert not detector.thinking
    assert detector.position == position


def test_no_boundary_and_no_cut_inside_a_spelled_tag() -> None:
    vocabulary = FakeVocabulary(tags=())
    detector = BoundaryDetector(profile("token"), vocabulary)
    ids = vocabulary.ids("a", "</", "th", "x")
    found = []
    for token_id in ids:
        found.append((detector.push(token_id) is not None, detector.held))
    assert found == [(True, False), (False, True), (False, True), (True, False)]


def test_tool_call_ends_thinking() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector(QWEN, vocabulary)
    for token_id in vocabulary.ids("a", "<tool_call>", "{", "wait", "}"):
        assert detector.push(token_id) is None
    assert (detector.thinking, detector.tool_call, detector.position) == (False, True, 1)


@pytest.mark.parametrize("tags", [("<think>", "</think>", "<tool_call>"), ()])
@pytest.mark.parametrize(
    ("after", "thinking", "asking", "position"),
    [
        (["\n"], True, True, 1),
        (["\n", "<"], True, True, 1),
        (["\n", "<", "fun"], False, False, 1),
        (["\n", "{", '"a'], False, False, 1),
        ([" tags"], True, False, 2),
        (["\n", " tags"], True, False, 2),
        (["`", " tags"], True, False, 3),
        (["\n", "</think>"], False, False, 1),
        (["<", "x", "</think>"], False, False, 1),
    ],
)
def test_R35_the_mark_of_a_tool_call_ends_thinking_where_a_call_follows(
    tags: tuple[str, ...], after: list[str], thinking: bool, asking: bool, position: int
) -> None:
    vocabulary = FakeVocabulary(tags=tags)
    detector = BoundaryDetector(QWEN, vocabulary)
    for token_id in vocabulary.ids("a", "<tool_call>", *after):
        assert detector.push(token_id) is None
    assert (detector.thinking, detector.position) == (thinking, position)
    assert detector.held is asking
    assert detector.whole is not asking


def test_R41_no_boundary_and_no_cut_while_a_call_may_follow() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector(profile("token", "every_n", every_n=1), vocabulary)
    told = []
    for token_id in vocabulary.ids("use", "<tool_call>", "\n", "{", '"name": wait'):
        told.append((detector.push(token_id) is not None, detector.held, detector.thinking))
    assert (
        told == [(True, False, True), (False, True, True), (False, True, True)] + [(False, False, False)] * 2
    )


def test_a_mention_of_a_tool_call_is_read_as_text() -> None:
    assert read(["a", " Wa", "<tool_call>", "it", " wait", ".\n\n"]) == [
        (4, "cue", "wait"), (5, "paragraph", "\n\n"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tail", "thinking", "closed"),
    [
        ([], False, False),
        (["<think>"], True, False),
        (["<think>", "\n"], True, False),
        (["<think>", "\n\n", "</think>", "\n\n"], False, True),
        (["<think>", "I", " see", "</think>", "\n\n", "The"], False, True),
        (["<think>", "I", " see"], True, False),
        (["<", "think", ">"], False, False),  # spelled, though the vocabulary has the tag
    ],
)
@pytest.mark.parametrize(
    "user",
    [[], ["<think>"], ["</think>"], ["<think>", "x", "</think>", "<think>"], ["<", "think", ">"],
     ["<|im_start|>", "assistant", "\n", "<think>"], ["<|im_start|>assistant\n<think>"]],
)  # fmt: skip
def test_state_starts_after_the_last_assistant_header(
    tail: list[str], thinking: bool, closed: bool, user: list[str]
) -> None:
    vocabulary = FakeVocabulary()
    ordinary = [vocabulary.token(p) if "|" in p and len(p) > 12 else vocabulary.ids(p)[0] for p in user]
    prompt = [*vocabulary.ids(*USER[:5]), *ordinary, *vocabulary.ids(*USER[5:], *TURN, *tail)]
    detector = BoundaryDetector.from_prompt(QWEN, vocabulary, prompt)
    assert (detector.thinking, detector.closed, detector.reopened) == (thinking, closed, False)
    assert (detector.position, detector.tokens) == (0, 0)


def test_a_header_spelled_in_an_answer_prefix_is_no_header() -> None:
    vocabulary = FakeVocabulary()
    prompt = [
        *vocabulary.ids(*USER, *TURN, "<think>", "he wrote "),
        vocabulary.token("<|im_start|>assistant\n"),
    ]
    assert BoundaryDetector.from_prompt(QWEN, vocabulary, prompt).thinking


def test_long_prefilled_thinking_is_found() -> None:
    vocabulary = FakeVocabulary()
    prompt = vocabulary.ids(*USER, *TURN, "<think>", *["x"] * 500)
    assert BoundaryDetector.from_prompt(QWEN, vocabulary, prompt).thinking


def test_prefilled_text_counts_for_what_it_begins() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector.from_prompt(
        QWEN, vocabulary, vocabulary.ids(*USER, *TURN, "<think>", "x", " Wa")
    )
    assert detector.push(vocabulary.token("it")) == Boundary(0, 1, "cue", "Wait")
    detector = BoundaryDetector.from_prompt(
        QWEN, vocabulary, vocabulary.ids(*USER, *TURN, "<think>", "```\nx")
    )
    assert detector.held


@pytest.mark.parametrize(
    ("prompt", "thinking"), [("Q: <think> is a tag. A:", False), ("Q: 2+2? <think>\n", True), ("", False)]
)
def test_without_a_header_the_end_of_the_prompt_decides(prompt: str, thinking: bool) -> None:
    vocabulary = FakeVocabulary()
    for chosen in (QWEN, profile()):
        detector = BoundaryDetector.from_prompt(chosen, vocabulary, vocabulary.encode(prompt))
        assert detector.thinking is thinking


def test_text_header_and_text_tags() -> None:
    vocabulary = FakeVocabulary(tags=())
    chosen = ModelProfile("text", assistant_header="Assistant:")
    prompt = vocabulary.ids("User: what is <think>?", "\nAssis", "tant: <", "think", ">\n")
    assert BoundaryDetector.from_prompt(chosen, vocabulary, prompt).thinking


def test_thinking_opened_by_the_model() -> None:
    vocabulary = FakeVocabulary()
    detector = BoundaryDetector.from_prompt(QWEN, vocabulary, vocabulary.ids(*USER, *TURN))
    found = [detector.push(i) for i in vocabulary.ids("\n", "<think>", "\n", " Wait")]
    assert found == [None, None, None, Boundary(0, 2, "cue", "Wait")]


PIECES = st.lists(
    st.sampled_from(
        ["a", " Wait", "wa", "it", "\n", ".\n\n", "</", "think", ">", "</think>", "<think>", "<tool_call>",
         "```\n", "$$", b"\xf0\x9f", b"\x92\xa1", "Hmm", "m", " x"]
    ),
    max_size=150,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(PIECES, st.booleans(), st.data())
def test_rewind_and_replay_equal_a_fresh_read(
    pieces: list[str | bytes], tagged: bool, data: st.DataObject
) -> None:
    vocabulary = FakeVocabulary() if tagged else FakeVocabulary(tags=())
    ids = vocabulary.ids(*pieces)
    chosen = profile("cue", "paragraph", "every_n", every_n=4)
    fresh = BoundaryDetector(chosen, vocabulary)
    trail = []
    for token_id in ids:
        found = fresh.push(token_id)
        trail.append((found, fresh.position, fresh.thinking, fresh.held, fresh.reopened))
    other = BoundaryDetector(chosen, vocabulary)
    for token_id in ids:
        other.push(token_id)
    keep = data.draw(st.integers(0, len(ids)))
    other.rewind(keep)
    assert other.tokens == keep
    again = []
    for token_id in ids[keep:]:
        found = other.push(token_id)
        again.append((found, other.position, other.thinking, other.held, other.reopened))
    assert again == trail[keep:]
    assert other.replay(ids) == tuple(found for found, *_ in trail if found)
