"""Reasoning and answer told apart: by the server, by ids where the text lacks the tags, by tags."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.engines.vllm.beside.split import IdSplitter, TagEater, ThoughtSplit
from desist.proxy.reasoning import Piece
from tests.fakes.vllm_server import PROFILE, reasoner

THOUGHT, ANSWER = "5 + 7 = 12. Wait, é 12.\n", "The answer is \\boxed{12}."


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    return reasoner()


def ids_of(facts: ModelFacts, text: str) -> list[int]:
    return list(facts.vocabulary.encode(text))


def prompt_of(facts: ModelFacts) -> tuple[int, ...]:
    return facts.chat_ids(({"role": "user", "content": "5 + 7?"},))


def joined(pieces: Sequence[Piece]) -> tuple[str, str]:
    return (
        "".join(piece.text for piece in pieces if piece.channel == "reasoning"),
        "".join(piece.text for piece in pieces if piece.channel == "content"),
    )


def chunks(facts: ModelFacts, ids: Sequence[int], draw: random.Random, *, lag: int = 0) -> Iterator[Chunk]:
    """vLLM's chunks: some ids each, special tokens not in the text, the text up to `lag` characters late."""
    data, told = b"", 0
    yield Chunk(prompt_ids=prompt_of(facts))
    at = 0
    while at < len(ids):
        n = draw.randint(1, 4)
        part = ids[at : at + n]
        at += n
        data += b"".join(
            facts.vocabulary.token_bytes(token) for token in part if token not in facts.hidden_ids
        )
        text = data.decode(errors="ignore")
        until = len(text) if at >= len(ids) else max(told, len(text) - draw.randint(0, lag))
        yield Chunk(content=text[told:until], token_ids=tuple(part))
        told = until


@pytest.mark.parametrize("lag", [0, 7])
def test_ids_tell_whatever_the_chunks_are(facts: ModelFacts, lag: int) -> None:
    ids = ids_of(facts, f"{THOUGHT}</think>\n\n{ANSWER}<|im_end|>")
    for seed in range(60):
        split = ThoughtSplit(PROFILE, facts)
        pieces: list[Piece] = []
        for chunk in chunks(facts, ids, random.Random(seed), lag=lag):
            pieces += split.feed(chunk, stopped=False)
        pieces += split.finish(stopped=False)
        assert joined(pieces) == (THOUGHT, ANSWER), seed
        assert split.n_reasoning == len(ids_of(facts, THOUGHT))


def test_thinking_that_is_opened_again_is_reasoning(facts: ModelFacts) -> None:
    ids = ids_of(facts, f"a.</think>\n\nNo.<think>\nb.</think>\n\n{ANSWER}")
    split = ThoughtSplit(PROFILE, facts)
    pieces = [
        piece
        for chunk in chunks(facts, ids, random.Random(1), lag=3)
        for piece in split.feed(chunk, stopped=False)
    ]
    assert joined(pieces) == ("a.\nb.", f"No.\n\n{ANSWER}")


def test_a_closed_prompt_has_no_reasoning(facts: ModelFacts) -> None:
    closed = facts.chat_ids(({"role": "user", "content": "5 + 7?"},), {"enable_thinking": False})
    split = ThoughtSplit(PROFILE, facts)
    pieces = split.feed(
        Chunk(content=ANSWER, token_ids=tuple(ids_of(facts, ANSWER)), prompt_ids=closed), stopped=False
    )
    assert joined(pieces) == ("", ANSWER)
    assert split.n_reasoning == 0


def test_a_server_that_parses_is_believed(facts: ModelFacts) -> None:
    split = ThoughtSplit(PROFILE, facts)
    thought = tuple(ids_of(facts, "12.</think>"))
    pieces = split.feed(Chunk(reasoning="12.", token_ids=thought, prompt_ids=prompt_of(facts)), stopped=False)
    pieces += split.feed(Chunk(content="</think> is a tag."), stopped=False)
    assert joined(pieces) == ("12.", "</think> is a tag.")
    assert split.n_reasoning == len(thought) - 1


@pytest.mark.parametrize("known", [True, False])
def test_a_server_may_hide_what_it_has_parsed(facts: ModelFacts, known: bool) -> None:
    split = ThoughtSplit(PROFILE, facts if known else None, opened=True, may_hide=True)
    pieces = split.feed(Chunk(prompt_ids=prompt_of(facts)), stopped=True)
    pieces += split.feed(Chunk(content=ANSWER), stopped=True)
    assert joined(pieces) == ("", ANSWER)
    plain = ThoughtSplit(PROFILE, facts, may_hide=True)  # no parser: nothing is hidden
    pieces = plain.feed(
        Chunk(content="12.", token_ids=tuple(ids_of(facts, "12.")), prompt_ids=prompt_of(facts)),
        stopped=False,
    )
    assert joined(pieces) == ("12.", "")


@pytest.mark.parametrize("known", [True, False])
def test_tags_in_the_text(facts: ModelFacts, known: bool) -> None:
    """Where special tokens are shown, and where no tokenizer is known."""
    text = f"{THOUGHT}</think>\n\n{ANSWER}"
    for opened, before in ((True, ""), (False, "<think>\n")):
        split = ThoughtSplit(PROFILE, facts if known else None, opened=opened, shows_special=True)
        start = Chunk(prompt_ids=prompt_of(facts)) if known and opened else Chunk()
        pieces = split.feed(start, stopped=False)
        for place in range(0, len(before + text), 3):
            pieces += split.feed(Chunk(content=(before + text)[place : place + 3]), stopped=False)
        pieces += split.finish(stopped=False)
        assert joined(pieces) == (THOUGHT.rstrip(), ANSWER)


def test_raw_text_stays_as_it_is(facts: ModelFacts) -> None:
    split = ThoughtSplit(PROFILE, facts, raw=True)
    pieces = split.feed(Chunk(content="<think>a</think>b", prompt_ids=prompt_of(facts)), stopped=True)
    assert pieces == [Piece("content", "<think>a</think>b")]


def test_tags_in_a_stopped_answer_are_eaten(facts: ModelFacts) -> None:
    split = ThoughtSplit(PROFILE, None, opened=True)
    pieces = split.feed(Chunk(content="a</think>b"), stopped=True)
    for part in ("<thi", "nk></think> c </thin", "gs> d</th"):
        pieces += split.feed(Chunk(content=part), stopped=True)
    pieces += split.finish(stopped=True)
    assert joined(pieces) == ("a", "b c </things> d</th")


def test_the_eater_takes_any_pieces() -> None:
    text = "one</think> two<think></think> three <thought> </thin"
    for size in range(1, 9):
        eater = TagEater(("<think>", "</think>"))
        shown = "".join(eater.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert shown + eater.finish() == "one two three <thought> </thin"


def test_a_broken_character_before_a_tag_counts_once(facts: ModelFacts) -> None:
    opening, closing = (facts.vocabulary.special_id(tag) for tag in ("<think>", "</think>"))
    assert opening is not None
    assert closing is not None
    splitter = IdSplitter(facts, opening, closing, thinking=True)
    half = ids_of(facts, "é")[:1]
    assert facts.vocabulary.token_bytes(half[0]) == "é".encode()[:1]
    pieces = splitter.feed([*ids_of(facts, "a"), *half, closing, *ids_of(facts, "b")], "a�b")
    assert joined(pieces) == ("a�", "b")
