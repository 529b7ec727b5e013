"""Keys that clients and operators show, and files of them. Holds digests once built, never compares in haste.

A file has one key a line; `#` begins a comment, a second word names the key's tenant. Knows nothing of
requests but the words of an `Authorization` header. No message repeats a key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from desist.data.errors import ControlError

__all__ = ["Key", "Keyring", "checked_key", "is_exposed", "read_key_file", "read_secret_file"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the operator wrote it. `tenant`: whose it is (None: nobody in particular's)."""

    secret: str = field(repr=False)
    tenant: str | None = None


def checked_key(text: str) -> str:
    """The key without white space at its ends. Raises `ValueError` for one that no header can carry."""
    key = text.strip()
    if not key:
        raise ValueError("a key is empty. An empty key would let everybody in: write one, or leave it out")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError("a key holds spaces or characters beyond ASCII. Use letters, digits and -._~+/=")
    return key


def read_key_file(path: Path) -> tuple[Key, ...]:
    """The keys of a file, in its order. Raises `ControlError` naming the line, and for a file without keys.

    A file that others may read is used all the same; `is_exposed` tells so.
    """
    keys = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) > 2:
            raise ControlError(
                f"{path}, line {number}, has {len(words)} words. Write a key, and after it, if need be, the "
                "name of its tenant."
            )
        try:
            keys.append(Key(checked_key(words[0]), *words[1:]))
        except ValueError as error:
            raise ControlError(f"{path}, line {number}: {error}.") from error
    if not keys:
        raise ControlError(f"{path} holds no key. Write one a line, or leave the setting out.")
    return tuple(keys)


def read_secret_file(path: Path) -> str:
    """The one key of a file. Raises `ControlError` where there are none or several."""
    keys = read_key_file(path)
    if len(keys) > 1 or keys[0].tenant is not None:
        raise ControlError(f"{path} must hold one key and nothing else.")
    return keys[0].secret


def is_exposed(path: Path) -> bool:
    """Whether others than the owner of a file may read or write it."""
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ControlError(f"the key file {path} cannot be read: {why}.") from error


class Keyring:
    """Finds whose key is shown. Every key is looked at, so that the time tells nothing of them."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._known = tuple((_digest(key.secret.encode()), key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, authorization: str) -> Key | None:
        """The key in an `Authorization: Bearer KEY` header; None: there is none, or it is unknown."""
        scheme, _, given = authorization.partition(" ")
        shown = _digest(given.strip().encode("latin-1", "replace"))
        found = None
        for digest, key in self._known:
            if hmac.compare_digest(digest, shown):
                found = key
        return found if scheme.lower() == "bearer" else None


def _digest(secret: bytes) -> bytes:
    """Digests have one length, so comparing them does not tell a key's."""
    return hashlib.blake2b(secret, digest_size=32).digest()
