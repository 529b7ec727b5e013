"""What the device is told of hold-off zones: only what may open one counts as having opened it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector
from desist.controller.automaton import TokenFlag
from desist.controller.holdoff import OPENING, HoldOff
from desist.kernels.boundary_score import BoundaryState, find_boundaries
from desist.kernels.rows import Rows
from desist.proxy.engines.vllm.inside.device_tables import device_tables
from tests.proxy.engines.vllm.inside.v2_requests import N_VOCABULARY, OPEN, PROFILE, TOKENS, VOCABULARY
from tests.proxy.engines.vllm.inside.v2_world import automaton

TEXT = st.text(alphabet='`~$\\{}"[]\n .a1^', max_size=12)


@settings(deadline=None, max_examples=400)
@given(st.lists(TEXT, max_size=8), st.lists(TEXT, max_size=3))
def test_no_zone_opens_without_a_character_that_opens_one(before: list[str], after: list[str]) -> None:
    zones = HoldOff()
    for text in before:
        zones.feed(text)
    for text in after:
        held = zones.held
        zones.feed(OPENING.sub("", text))
        assert held or not zones.held


@pytest.mark.parametrize("text", ["```", "~~~", "$$", "\\[", "\\begin{", '{"'])
def test_each_kind_of_zone_is_opened_by_one(text: str) -> None:
    zones = HoldOff()
    zones.feed(text)
    assert zones.held
    assert OPENING.search(text[-1])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.lists(st.sampled_from(TOKENS), max_size=3))
def test_a_zone_after_tokens_is_told_without_reading_them(read: list[int], ahead: list[int]) -> None:
    detector = BoundaryDetector.from_prompt(PROFILE, VOCABULARY, [OPEN])
    for token in read:
        detector.push(token)
    told, tokens = detector.zone_after(ahead), detector.tokens
    assert detector.tokens == tokens == len(read)
    for token in ahead:
        detector.push(token)
    assert told == (detector.thinking and detector.zone_after(()))
    assert detector.held == (told or detector.mid_character)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=40))
def test_the_device_reads_as_the_detector_does(tokens: list[int]) -> None:
    """Same boundaries and counts as before the tables were cut; a zone counts from the last opening token."""
    found = automaton()
    tables = device_tables(found, VOCABULARY, "cpu")
    detector = BoundaryDetector.from_prompt(PROFILE, VOCABULARY, [OPEN])
    state = BoundaryState(1, 2)
    state.enter(0, 0, **found.state_of(detector)._asdict())
    last = -1
    for position, token in enumerate(tokens, 1):
        column = (torch.tensor([value], dtype=torch.int32) for value in (0, position, token, 0))
        row = find_boundaries(Rows(*column), tables.automaton, state, impl="torch")
        boundary = detector.push(token)
        bits = int(row.flags)
        assert bool(bits & TokenFlag.BOUNDARY) == (boundary is not None)
        assert bool(bits & TokenFlag.THINKING) == detector.thinking
        assert int(row.count) == detector.position
        if detector.thinking and tables.may_open(token):
            last = position
        assert int(row.zone) == last
        assert detector.zone_after(()) <= (last >= 0)


def test_a_paragraph_end_opens_nothing() -> None:
    tables = device_tables(automaton(), VOCABULARY, "cpu")
    blank, dotted, dollars = VOCABULARY.ids("\n\n", ".\n\n", "$$")
    assert [tables.may_open(token) for token in (blank, dotted, dollars)] == [False, False, True]
    assert tables.may_open(N_VOCABULARY + 1)


def test_tables_that_do_not_fit_are_refused() -> None:
    wide: Any = SimpleNamespace(
        vocabulary_size=2**15 + 2,
        token_class=np.arange(2**15 + 2),
        next=np.zeros((1, 2**15 + 2), np.int16),
        flags=np.zeros((1, 2**15 + 2), np.uint8),
        every_n=0,
    )
    with pytest.raises(ValueError, match="do not fit"):
        device_tables(wide, VOCABULARY, "cpu")
