"""The token automaton of a profile as the device walks it, with zones told as narrowly as can be.

The automaton says of a token that it may open or close a hold-off zone; nearly every paragraph end would be
such a token, since a line end may close one. On the device a token that the host has not seen yet counts as
having opened a zone, so it is to be one that can: a token without any character that opens one cannot. (One
that may close a zone says nothing here: a zone stays open until the host says that it is closed.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from desist.controller.automaton import TokenAutomaton, TokenFlag
from desist.controller.holdoff import OPENING
from desist.controller.vocabulary import Vocabulary
from desist.kernels.boundary_score import Automaton

__all__ = ["Tables", "device_tables"]


class Tables(NamedTuple):
    """`automaton`: on the device. `opens` [V] bool: which tokens hold a character that may open a zone."""

    found: TokenAutomaton
    automaton: Automaton
    opens: npt.NDArray[np.bool_]

    def may_open(self, token_id: int) -> bool:
        """Whether a zone may be opened by this token. An id that the tables do not have may do anything."""
        return not 0 <= token_id < len(self.opens) or bool(self.opens[token_id])


def device_tables(found: TokenAutomaton, vocabulary: Vocabulary, device: torch.device | str) -> Tables:
    """Tables with the same states; ZONE is kept for the tokens that may open a zone.

    Raises `ValueError` where they do not fit the kernel's.
    """
    ids = range(found.vocabulary_size)
    texts = (vocabulary.token_bytes(token_id).decode(errors="replace") for token_id in ids)
    opens = np.fromiter((OPENING.search(text) is not None for text in texts), bool, len(ids))
    # A class of tokens is cut in two where some of its tokens may open a zone and some may not.
    cut = found.token_class.astype(np.int64) * 2 + opens
    kept, classes = np.unique(cut, return_inverse=True)
    column, zone = kept // 2, kept % 2 == 1
    mask = np.where(zone, 0xFF, 0xFF & ~int(TokenFlag.ZONE)).astype(np.uint8)
    automaton = Automaton.of(
        classes, found.next[:, column], found.flags[:, column] & mask, every_n=found.every_n, device=device
    )
    return Tables(found, automaton, opens)
