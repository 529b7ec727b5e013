"""The smallest tables of a finite automaton: what no input can tell apart becomes one.

Knows numbers only. States are merged by Moore's refinement: they start in one block for each row of outputs,
and a block is split as long as its states lead to different ones. Equal columns are merged before, so that
there is less to compare, and after, since merged states make more of them equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Minimal", "minimal"]

_Numbers = npt.NDArray[np.int64]


class Minimal(NamedTuple):
    """N states by C columns, and what became of the old ones.

    `next` [N, C]: the state after an input; `flags` [N, C]: what is put out; `states`: the new number of each
    old state; `columns`: that of each old column.
    """

    next: _Numbers
    flags: _Numbers
    states: _Numbers
    columns: _Numbers


def minimal(after: npt.NDArray[Any], flags: npt.NDArray[Any]) -> Minimal:
    """The smallest tables that put out what `flags` [N, C] does along `after` [N, C], from any state."""
    first, columns = _alike(np.concatenate((after, flags)).T)
    after, flags = after[:, first], flags[:, first]
    kept, states = _alike(flags)
    while True:
        finer, refined = _alike(np.column_stack((states, states[after])))
        if len(finer) == len(kept):
            break
        kept, states = finer, refined
    after, flags = states[after[kept]], flags[kept]
    first, again = _alike(np.concatenate((after, flags)).T)
    return Minimal(after[:, first], flags[:, first].astype(np.int64), states, again[columns])


def _alike(rows: npt.NDArray[Any]) -> tuple[_Numbers, _Numbers]:
    """The place of one row of each kind, and the kind of each row."""
    _, first, kinds = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kinds.reshape(-1)
