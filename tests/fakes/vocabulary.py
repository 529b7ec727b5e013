"""A vocabulary that grows as a test needs tokens; added tokens (tags) are named at the start."""

from __future__ import annotations

import re
from collections.abc import Iterable

QWEN_TAGS = ("<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>")


class FakeVocabulary:
    """Every distinct piece is one token. `encode` cuts into known pieces, longest first, else bytes."""

    def __init__(self, tags: Iterable[str] = QWEN_TAGS) -> None:
        self._bytes: list[bytes] = []
        self._ids: dict[bytes, int] = {}
        self._tags: dict[str, int] = {}
        for tag in tags:
            self._tags[tag] = len(self._bytes)
            self._bytes.append(tag.encode())

    def token(self, piece: str | bytes) -> int:
        """The id of an ordinary piece (never of a tag, even where it is spelled alike)."""
        data = piece.encode() if isinstance(piece, str) else piece
        if data not in self._ids:
            self._ids[data] = len(self._bytes)
            self._bytes.append(data)
        return self._ids[data]

    def ids(self, *pieces: str | bytes) -> list[int]:
        """Ids of pieces; a piece that is a tag is that tag."""
        return [self._tags[piece] if piece in self._tags else self.token(piece) for piece in pieces]  # type: ignore[index]

    def text(self, token_ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._tags.values()

    def special_id(self, text: str) -> int | None:
        return self._tags.get(text)

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        tags = "|".join(map(re.escape, sorted(self._tags, key=len, reverse=True)))
        for part in re.split(f"({tags})", text) if tags else [text]:
            if part in self._tags:
                ids.append(self._tags[part])
            else:
                ids += self._plain(part.encode())
        return tuple(ids)

    def _plain(self, data: bytes) -> list[int]:
        ids = []
        while data:
            known = max((piece for piece in self._ids if data.startswith(piece)), key=len, default=data[:1])
            ids.append(self.token(known))
            data = data[len(known) :]
        return ids
