"""Token ids as the controller sees them: exact bytes, and which ids are tags rather than text.

Knows how byte-level BPE and sentencepiece vocabularies spell bytes. Knows no model and imports no
tokenizer library: `TokenizerVocabulary` adapts any fast transformers tokenizer by its methods.
"""

from __future__ import annotations

from typing import Any, Protocol

from desist.data.errors import ControlError

__all__ = ["TokenizerVocabulary", "Vocabulary"]

#: Texts whose ids are kept: tags, headers and hand-offs, which each request asks for.
_SHORT, _MOST_KEPT = 256, 1024
_SPACE = "\u2581"  # how sentencepiece writes a space


class Vocabulary(Protocol):
    """What the controller asks of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, its leading space included; empty for an id with no token."""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is an added token (a tag, a header), which ordinary text cannot spell."""

    def special_id(self, text: str) -> int | None:
        """The id of the added token whose text is `text`, or None."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text that we write ourselves (a hand-off): tags in it become their added tokens."""


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of the 256 bytes in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in piece)
    except KeyError:
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_SPACE, " ").encode()


class TokenizerVocabulary:
    """A fast transformers tokenizer as a `Vocabulary`. Bytes are looked up lazily and kept.

    Raises `ControlError` where the spelling of the vocabulary is not recognised: a wrong guess would
    lose spaces, and with them word boundaries.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._added: dict[int, str] = {int(key): str(token) for key, token in added.items()}
        # A vocabulary may add plain white space as tokens of its own; that is text, not a tag.
        self._tags = {text: key for key, text in self._added.items() if text.strip(f"{_SPACE} \n\t\r")}
        self._tag_ids = frozenset(self._tags.values())
        self._size = len(tokenizer)
        self._spell = _spelling(tokenizer)
        self._bytes: dict[int, bytes] = {}
        self._encoded: dict[str, tuple[int, ...]] = {}

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        return token_id in self._tag_ids

    def special_id(self, text: str) -> int | None:
        return self._tags.get(text)

    def encode(self, text: str) -> tuple[int, ...]:
        known = self._encoded.get(text)
        if known is None:
            known = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            if len(text) <= _SHORT and len(self._encoded) < _MOST_KEPT:
                self._encoded[text] = known
        return known

    def _look_up(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return (added if token_id in self._tag_ids else added.replace(_SPACE, " ")).encode()
        if not 0 <= token_id < self._size:
            return b""  # models pad their embedding beyond the tokenizer
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        return self._spell(piece) if piece else b""


def _spelling(tokenizer: Any) -> Any:
    """How this vocabulary spells bytes, told by pieces that only one of the two spellings has."""
    vocabulary = tokenizer.get_vocab()
    if _SPACE in vocabulary or "<0x0A>" in vocabulary:
        return _sentencepiece
    if "\u0120" in vocabulary and "\u010a" in vocabulary:  # space and newline, byte-level
        return _byte_level
    raise ControlError(
        f"the tokenizer {type(tokenizer).__name__} has neither a byte-level nor a sentencepiece "
        "vocabulary, so the bytes of its tokens are not known. Use a fast tokenizer of one of these kinds, "
        "or write a class with the methods of desist.controller.Vocabulary."
    )
