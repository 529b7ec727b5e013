"""The event-stream parser: any cutting of the bytes gives the same events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.errors import UpstreamError
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
