"""Tables read by the kernels' own specification, and the same told by a detector."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desist.controller import BoundaryDetector
from desist.controller.automaton import Standing, TokenAutomaton, TokenFlag
from desist.controller.holdoff import SPECIAL
from desist.controller.vocabulary import Vocabulary
from desist.kernels.boundary_score import Automaton, BoundaryState, find_boundaries
from desist.kernels.rows import Rows


def walk(
    automaton: TokenAutomaton, standing: Standing, token_ids: Sequence[int], position: int = 0
) -> list[tuple[int, int, int]]:
    """(flags, count, zone) of each token after `position`, as the kernels' specification has them."""
    tables = Automaton.of(automaton.token_class, automaton.next, automaton.flags, every_n=automaton.every_n)
    state = BoundaryState(1, len(token_ids) + 2)
    state.enter(0, position, **standing._asdict())
    count = len(token_ids)
    columns = ([0] * count, range(position + 1, position + 1 + count), token_ids, range(count))
    rows = Rows(*(torch.tensor(list(column), dtype=torch.int32) for column in columns))
    found = find_boundaries(rows, tables, state, impl="torch")
    return list(zip(found.flags.tolist(), found.count.tolist(), found.zone.tolist(), strict=True))


def read(
    detector: BoundaryDetector, words: Vocabulary, token_ids: Sequence[int], position: int = 0
) -> list[tuple[int, int, int]]:
    """The same from a detector that is asked no more once thinking has closed, as `Tracked` does."""
    told, zone = [], -1
    for place, token_id in enumerate(token_ids, position + 1):
        flags, before = TokenFlag(0), detector.position
        if not detector.closed or detector.thinking:
            if detector.push(token_id) is not None:
                flags |= TokenFlag.BOUNDARY
            if detector.thinking:
                flags |= TokenFlag.THINKING
            if detector.position > before:
                flags |= TokenFlag.COUNTED
            asking = detector.thinking and not detector.whole
            special = SPECIAL.search(words.token_bytes(token_id).decode(errors="replace"))
            if special and (asking or detector.position > before):
                flags |= TokenFlag.ZONE
                zone = place
        if detector.whole:
            flags |= TokenFlag.WHOLE
        told.append((int(flags), detector.position, zone))
    return told


def assert_same(
    automaton: TokenAutomaton, words: Vocabulary, token_ids: Sequence[int], cut: int, *, thinking: bool = True
) -> None:
    """From the start, and from the middle of the history."""
    detector = BoundaryDetector(automaton.profile, words, thinking=thinking)
    start = automaton.state_of(detector)
    expected = read(detector, words, token_ids)
    names = [words.token_bytes(token_id) for token_id in token_ids]
    assert walk(automaton, start, token_ids) == expected, names
    middle = BoundaryDetector(automaton.profile, words, thinking=thinking)
    read(middle, words, token_ids[:cut])
    entered = automaton.state_of(middle)
    after = [(flags, count, zone if zone > cut else -1) for flags, count, zone in expected[cut:]]
    assert walk(automaton, entered, token_ids[cut:], cut) == after, names
