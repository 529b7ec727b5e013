"""The event-stream parser: any cutting of the bytes gives the same events."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.errors import UpstreamError
from desist.proxy.reasoning import ThinkSplitter, split_reasoning
from desist.proxy.sse import DONE, PING, ServerSentEvent, SseParser, write_event

CHUNKS = st.lists(st.binary(max_size=6), max_size=12)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    places = sorted({min(border, len(data)) for border in borders} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def parse(chunks: list[bytes]) -> list[ServerSentEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@given(
    st.lists(st.sampled_from([b"data: a\n", b"data:b\r\n", b"data: c\r", b": x\n", b"\n", b"\r\n", b"\r",
                              b"event: e\n", b"id: 7\r\n", b"data\n", b"data: {\"k\": 1}\n\n", b"junk: 1\n"]),
             max_size=14),
    st.lists(st.integers(0, 120), max_size=20),
)  # fmt: skip
def test_any_cutting_gives_the_same_events(lines: list[bytes], borders: list[int]) -> None:
    data = b"".join(lines)
    assert parse(cut(data, borders)) == parse([data])


@given(CHUNKS)
def test_arbitrary_bytes_never_crash_and_cutting_does_not_matter(chunks: list[bytes]) -> None:
    assert parse(chunks) == parse([b"".join(chunks)])


@given(
    st.lists(st.text(alphabet=st.characters(exclude_characters="\r", exclude_categories=["Cs"])), min_size=1)
)
def test_what_is_written_is_read(texts: list[str]) -> None:
    stream = b"".join(write_event(text.encode()) + PING for text in texts)
    assert [event.data.decode() for event in parse([stream])] == texts


def test_fields() -> None:
    stream = b"\xef\xbb\xbfevent: error\nid: 3\ndata: one\ndata: two\n\ndata: [DONE]\n\n"
    first, last = parse([stream])
    assert first == ServerSentEvent(b"one\ntwo", "error", "3")
    assert last.done
    assert not first.done
    assert last.data == DONE


def test_an_unfinished_event_is_dropped_and_told() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b\n") == [ServerSentEvent(b"a")]
    assert parser.pending
    assert parser.feed(b"\n") == [ServerSentEvent(b"b")]
    assert not parser.pending


def test_an_endless_event_is_refused() -> None:
    parser = SseParser(max_event_bytes=100)
    assert parser.feed(b"data: aaaa\n" * 20) == []
    with pytest.raises(UpstreamError, match="exceeds 100 bytes"):
        parser.feed(b"data: b\n")


EVERY_KIND = (
    b"\xef\xbb\xbf: hello\r\nevent: a\r\nid: 1\r\ndata: one\r\ndata: two\r\n\r\n"
    + b"data: \xf0\x9f\xa4\x96\n\n"
    + PING
    + b"data\n\nretry: 3\rdata:x\r\rdata: [DONE]\n\n"
)


def test_every_pair_of_split_points_gives_the_same_events() -> None:
    whole = parse([EVERY_KIND])
    assert [event.data for event in whole] == [b"one\ntwo", "\U0001f916".encode(), b"", b"x", DONE]
    for first, second in itertools.combinations_with_replacement(range(len(EVERY_KIND) + 1), 2):
        assert parse([EVERY_KIND[:first], EVERY_KIND[first:second], EVERY_KIND[second:]]) == whole
    assert parse([EVERY_KIND[n : n + 1] for n in range(len(EVERY_KIND))]) == whole


def test_R24_a_character_in_two_byte_chunks_is_one_character() -> None:
    data = write_event('{"delta":"\U0001f916"}'.encode())
    for place in range(len(data) + 1):
        events = parse([data[:place], data[place:]])
        assert [json.loads(event.data) for event in events] == [{"delta": "\U0001f916"}]


@given(
    st.lists(
        st.lists(
            st.sampled_from(["<think>", "</th", "ink>", "a\n\nb", "\r", "\U0001f916", "<tool_call>{", " "]),
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 2_000), max_size=30),
)
def test_R45_interleaved_choices_through_any_cutting_of_the_bytes(
    choices: list[list[str]], rng: random.Random, borders: list[int]
) -> None:
    """Chunks of several choices in any order, one or two in a chunk, pings between, cut anywhere."""
    order = [number for number, parts in enumerate(choices) for _ in parts]
    rng.shuffle(order)
    waiting = [list(parts) for parts in choices]
    deltas = [{"index": number, "delta": {"content": waiting[number].pop(0)}} for number in order]
    stream = b""
    while deltas:
        n = rng.randint(1, 2)
        stream += write_event(json.dumps({"choices": deltas[:n]}, ensure_ascii=False).encode())
        stream += rng.choice((b"", PING))
        deltas = deltas[n:]
    splitters = [ThinkSplitter() for _ in choices]
    read: list[dict[str, str]] = [{"reasoning": "", "content": ""} for _ in choices]
    for event in parse(cut(stream, borders)):
        for choice in json.loads(event.data)["choices"]:
            number = choice["index"]
            for piece in splitters[number].feed(choice["delta"]["content"]):
                read[number][piece.channel] += piece.text
    for number, parts in enumerate(choices):
        for piece in splitters[number].finish():
            read[number][piece.channel] += piece.text
        assert tuple(read[number].values()) == split_reasoning(["".join(parts)])
