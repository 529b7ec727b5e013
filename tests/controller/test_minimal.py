"""Smallest tables: they put out the same, and nothing in them can be told from anything else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller.minimal import minimal


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.integers(1, 3))
def test_the_same_is_put_out_and_no_two_are_alike(seed: int, states: int, columns: int, flags: int) -> None:
    rng = np.random.default_rng(seed)
    after = rng.integers(states, size=(states, columns))
    out = rng.integers(flags, size=(states, columns))
    copies = rng.integers(columns, size=columns + 3)  # some columns stand there twice
    after, out = after[:, copies], out[:, copies]
    small = minimal(after, out)
    assert (small.next[small.states][:, small.columns] == small.states[after]).all()
    assert (small.flags[small.states][:, small.columns] == out).all()
    both = np.concatenate((small.next, small.flags))
    assert len(np.unique(both, axis=1).T) == small.next.shape[1]
    # Pairs of states that some text tells apart, found one step at a time.
    count = len(small.next)
    apart = (small.flags[:, None] != small.flags[None]).any(-1)
    for _ in range(count):
        apart |= apart[small.next[:, None], small.next[None]].any(-1)
    assert (apart | np.eye(count, dtype=bool)).all()


def test_one_state_and_one_column_are_the_least() -> None:
    small = minimal(np.array([[1, 2], [2, 0], [0, 1]]), np.full((3, 2), 5))
    assert small.next.tolist() == [[0]]
    assert small.flags.tolist() == [[5]]
    assert small.states.tolist() == [0, 0, 0]
    assert small.columns.tolist() == [0, 0]
