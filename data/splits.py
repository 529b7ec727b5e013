"""Splits by problem, deterministic by hash.

Knows the text of a problem only; never a trace or a boundary, so that all traces of one problem land
in one split. The same text lands in the same split on every machine and in every version.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

__all__ = ["SPLITS", "Split", "problem_id", "split_of"]

Split = Literal["reasoner", "train", "calibration", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Upper ends of the hash intervals in thousandths: the built-in reasoner is trained on 70 % of all
# problems, probes on 15 %, certificates on 7.5 %; the last 7.5 % are for tests and demonstrations.
_UPPER_ENDS: tuple[tuple[Split, int], ...] = (
    ("reasoner", 700),
    ("train", 850),
    ("calibration", 925),
    ("test", 1000),
)


def problem_id(text: str) -> str:
    """Identity of a problem: 16 hex digits of the SHA-256 of its text, white space folded."""
    folded = " ".join(text.split())
    return hashlib.sha256(folded.encode()).hexdigest()[:16]


def split_of(identity: str) -> Split:
    """The split a problem belongs to. `identity` may be any string: it is hashed once more."""
    point = int.from_bytes(hashlib.sha256(f"split:{identity}".encode()).digest()[:8]) * 1000 >> 64
    return next(split for split, upper in _UPPER_ENDS if point < upper)
