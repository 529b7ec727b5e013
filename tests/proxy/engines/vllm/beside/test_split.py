"""Reasoning and answer told apart: by the server, by ids where the text lacks the tags, by tags."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.engines.vllm.beside.split import IdSplitter, TagEater, ThoughtSplit
from desist.proxy.reasoning import Piece, ThinkSplitter
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


def whole(split: ThoughtSplit, parts: Iterable[Chunk], *, stopped: bool = False) -> tuple[str, str]:
    pieces = [piece for chunk in parts for piece in split.feed(chunk, stopped=stopped)]
    return joined([*pieces, *split.finish(stopped=stopped)])


@pytest.mark.parametrize("lag", [0, 9])
def test_a_block_counts_directly_after_another_and_nowhere_later(facts: ModelFacts, lag: int) -> None:
    """As for the parser of texts and the controller; the tags themselves are missing in vLLM's text."""
    ids = ids_of(facts, f"a.</think>\n\n<think>\nb.</think></think>\nNo.<think>\nc.</think>\n\n{ANSWER}")
    for seed in range(30):
        split = ThoughtSplit(PROFILE, facts)
        found = whole(split, chunks(facts, ids, random.Random(seed), lag=lag))
        assert found == ("a.b.", f"No.\nc.\n\n{ANSWER}"), seed
        detector = BoundaryDetector(PROFILE, facts.vocabulary)
        detector.skip(ids)
        assert abs((split.n_reasoning or 0) - detector.position) <= 1  # the line end of the second block


@settings(deadline=None, max_examples=150)
@given(
    parts=st.lists(
        st.sampled_from(
            ["<think>", "</think>", "5 + 7", " é", "\n", "\n\n", " ", "Wait,", "<", "</th", "ink>", "x"]
        ),
        max_size=14,
    ),
    opened=st.booleans(),
    seed=st.integers(0, 99),
    lag=st.integers(0, 9),
)
def test_ids_and_texts_are_split_by_one_rule(parts: list[str], opened: bool, seed: int, lag: int) -> None:
    """Tags as special tokens that vLLM's text lacks, against the parser of the text that has them."""
    facts = reasoner()
    text = "".join(parts)
    ids = ids_of(facts, text)
    detector = BoundaryDetector(PROFILE, facts.vocabulary, thinking=opened)
    detector.skip(ids)
    splitter = IdSplitter(facts, PROFILE, thinking=opened)
    pieces: list[Piece] = []
    for chunk in chunks(facts, ids, random.Random(seed), lag=lag):
        pieces += splitter.feed(chunk.token_ids, chunk.content)
    pieces += splitter.finish()
    plain = ThinkSplitter.of(PROFILE, opened=opened)
    wanted = joined([*plain.feed(text), *plain.finish()])
    hidden = tuple(re.sub("</?think>", "", side) for side in wanted)  # at once: no tag grows together
    assert joined(pieces) == hidden


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
    pieces += split.feed(Chunk(content="\n\nThe tag is </think>, "), stopped=False)
    pieces += split.feed(Chunk(content="</think>."), stopped=False)
    assert joined(pieces) == ("12.", "The tag is </think>, </think>.")
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
        assert joined(pieces) == (THOUGHT, ANSWER)


def test_R41_ids_of_a_call_in_thinking_are_not_counted_as_reasoning(facts: ModelFacts) -> None:
    profile = dataclasses.replace(PROFILE, tool_call_open="CALL", tool_call_close=None)
    for said, n in (
        (f"5 + 7 CALL {THOUGHT}</think>{ANSWER}", None),
        ('5 + 7 CALL {"a": 1}', len(ids_of(facts, "5 + 7 "))),
    ):
        split = ThoughtSplit(profile, facts)
        pieces: list[Piece] = []
        for chunk in chunks(facts, ids_of(facts, said), random.Random(1)):
            pieces += split.feed(chunk, stopped=False)
        pieces += split.finish(stopped=False)
        reasoning, answer = joined(pieces)
        assert split.n_reasoning is not None
        if n is None:  # a mention: thinking goes on
            assert answer == ANSWER
            assert split.n_reasoning > len(ids_of(facts, THOUGHT))
        else:
            assert split.n_reasoning <= n + len(ids_of(facts, "CALL"))  # here a mark of several tokens
            assert answer.endswith('{"a": 1}')
            assert reasoning.startswith("5 + 7")


def test_raw_text_stays_as_it_is(facts: ModelFacts) -> None:
    split = ThoughtSplit(PROFILE, facts, raw=True)
    pieces = split.feed(Chunk(content="<think>a</think>b", prompt_ids=prompt_of(facts)), stopped=True)
    assert pieces == [Piece("content", "<think>a</think>b")]


@pytest.mark.parametrize("known", [True, False])
def test_r31_tags_that_a_stopped_answer_quotes_are_text(facts: ModelFacts, known: bool) -> None:
    """Directly after the hand-off a tag is waste; later it is text, unless it is a token of its own."""
    text = "a</think></think>\n<think>\n</think>b <think> c </things> d</th"
    for size in range(1, 12):
        split = ThoughtSplit(PROFILE, facts if known else None, opened=True, shows_special=True)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        first = Chunk(prompt_ids=prompt_of(facts)) if known else Chunk()
        said = whole(split, [first, *(Chunk(content=part) for part in parts)], stopped=True)
        assert said == ("a", "b <think> c </things> d</th")


@pytest.mark.parametrize("parses", [True, False])
def test_r31_a_tag_that_is_a_token_is_taken_out_of_a_stopped_answer(facts: ModelFacts, parses: bool) -> None:
    vocabulary = facts.vocabulary
    close = vocabulary.special_id("</think>")
    assert close is not None
    quoted = [token for piece in ("</", "thin", "k>") for token in ids_of(facts, piece)]
    assert close not in quoted
    answer = [*ids_of(facts, "b "), *quoted, *ids_of(facts, " c "), close, *ids_of(facts, "d "), *quoted]
    before = [] if parses else [*ids_of(facts, "a"), close]
    for size in range(1, 9):
        split = ThoughtSplit(PROFILE, facts, shows_special=True, parses=parses)
        parts = [Chunk(prompt_ids=prompt_of(facts))]
        if parses:
            parts.append(Chunk(reasoning="a", token_ids=(*ids_of(facts, "a"), close)))
        ids = before + answer
        for at in range(0, len(ids), size):
            part = tuple(ids[at : at + size])
            text = b"".join(map(vocabulary.token_bytes, part)).decode()
            parts.append(Chunk(content=text, token_ids=part))
        assert whole(split, parts, stopped=True) == ("a", "b </think> c d </think>")


def test_what_follows_the_hand_off_of_a_server_that_parses(facts: ModelFacts) -> None:
    """vLLM's own parsers leave a second close tag in the answer."""
    split = ThoughtSplit(PROFILE, facts, parses=True)
    parts = [Chunk(prompt_ids=prompt_of(facts)), Chunk(reasoning="a"), Chunk(content="\n</thi")]
    parts += [Chunk(content="nk>\n"), Chunk(content='{"n": 1}')]
    assert whole(split, parts, stopped=True) == ("a", '{"n": 1}')


def test_a_server_that_is_known_to_parse_and_has_nothing_to_show_as_thinking(facts: ModelFacts) -> None:
    """The ids hold a line end and a tag, of which the server's text has nothing left."""
    split = ThoughtSplit(PROFILE, facts, parses=True)
    parts = [Chunk(prompt_ids=prompt_of(facts))]
    parts.append(Chunk(content=ANSWER, token_ids=tuple(ids_of(facts, f"\n</think>{ANSWER}"))))
    assert whole(split, parts, stopped=True) == ("", ANSWER)


def test_the_eater_takes_any_pieces() -> None:
    text = "one</think> two<think></think> three <thought> </thin"
    for size in range(1, 9):
        eater = TagEater(PROFILE, deque([True, False, True]))
        shown = "".join(eater.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert shown + eater.finish() == "one two<think> three <thought> </thin"


def test_a_broken_character_before_a_tag_counts_once(facts: ModelFacts) -> None:
    closing = facts.vocabulary.special_id("</think>")
    assert closing is not None
    splitter = IdSplitter(facts, PROFILE, thinking=True)
    half = ids_of(facts, "é")[:1]
    assert facts.vocabulary.token_bytes(half[0]) == "é".encode()[:1]
    pieces = splitter.feed([*ids_of(facts, "a"), *half, closing, *ids_of(facts, "b")], "a�b")
    assert joined(pieces) == ("a�", "b")
