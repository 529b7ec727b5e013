"""Tags in token streams, and where in a prompt the model's turn begins.

A tag that is an added token of the vocabulary counts by its id only; text that merely spells it does
not. A tag that the vocabulary lacks is found as text, over token borders. Knows no thinking state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

from desist.controller.vocabulary import Vocabulary

__all__ = ["Tag", "after_header", "ends_with"]

_MARK = b"\xff"  # stands before an added token where bytes are searched; never occurs in UTF-8
_FIRST_SPAN = 16  # tokens at the end of a prompt that are searched first
_END_SPAN = 64  # tokens in which a tag at the very end must begin


class Tag:
    """One tag: an added token, or a text that tokens spell together."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.data = text.encode()
        self.token_id = vocabulary.special_id(text)

    @property
    def marked(self) -> bytes:
        """The tag as `_marked` writes it."""
        return self.data if self.token_id is None else _MARK + self.data

    def find(self, recent: Sequence[bytes], token_id: int | None, data: bytes) -> tuple[int, int] | None:
        """Start and end of the tag completed by this token, in bytes from the token's first byte.

        `recent` are the bytes of the tokens before it; the start is negative if the tag began there.
        """
        if self.token_id is not None:
            return (0, len(data)) if token_id == self.token_id else None
        before = b"".join(recent)
        start = (before + data).find(self.data, max(0, len(before) - len(self.data) + 1))
        return None if start < 0 else (start - len(before), start + len(self.data) - len(before))

    def begun(self, recent: Sequence[bytes]) -> bool:
        """Whether the text ends in at least two bytes of this tag, but not all of it."""
        if self.token_id is not None:
            return False
        text = b"".join(recent)
        return any(text.endswith(self.data[:n]) for n in range(2, len(self.data)))


def after_header(
    header: str | None, vocabulary: Vocabulary, prompt_ids: Sequence[int]
) -> tuple[tuple[int | None, bytes], ...] | None:
    """The tokens (id, bytes) of a prompt after its last assistant header; None where there is none.

    A token that holds the header's end counts with the rest of its bytes and without its id.
    """
    pattern = _pattern(header, cast(Hashable, vocabulary)) if header else b""
    span = _FIRST_SPAN
    while pattern:
        tail = prompt_ids[-span:]
        pieces = [_marked([token_id], vocabulary) for token_id in tail]
        place = b"".join(pieces).rfind(pattern)
        if place >= 0:
            return tuple(_tokens_from(tail, pieces, vocabulary, place + len(pattern)))
        if span >= len(prompt_ids):
            break
        span *= 2
    return None


def ends_with(tag: Tag, vocabulary: Vocabulary, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends in this tag, white space aside."""
    return _marked(prompt_ids[-_END_SPAN:], vocabulary).rstrip().endswith(tag.marked.rstrip())


@lru_cache(maxsize=64)
def _pattern(header: str, vocabulary: Any) -> bytes:
    ids = vocabulary.encode(header)
    # Without an added token in it, a header is plain text, and how it is cut into tokens varies.
    return _marked(ids, vocabulary) if any(map(vocabulary.is_special, ids)) else header.encode()


def _tokens_from(
    token_ids: Sequence[int], pieces: Sequence[bytes], vocabulary: Vocabulary, place: int
) -> Iterator[tuple[int | None, bytes]]:
    at = 0
    for token_id, piece in zip(token_ids, pieces, strict=True):
        end = at + len(piece)
        if at >= place:
            yield token_id, vocabulary.token_bytes(token_id)
        elif end > place:
            yield None, vocabulary.token_bytes(token_id)[-(end - place) :]
        at = end


def _marked(token_ids: Iterable[int], vocabulary: Vocabulary) -> bytes:
    """Bytes of tokens with a mark before each added token, so that plain text cannot pass for one."""
    return b"".join(
        _MARK + vocabulary.token_bytes(token_id)
        if vocabulary.is_special(token_id)
        else vocabulary.token_bytes(token_id)
        for token_id in token_ids
    )
