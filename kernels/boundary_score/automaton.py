"""The token automaton on the device: what a token can do (its class), and what it does in a state.

Knows tables only; who fills them, and which tags and cues they stand for, is the caller's affair. A Mealy
machine: what is put out depends on the state and on the token's class. Everything it says is final when
the token is read, so a tag that is spelled by several tokens cannot take its earlier tokens back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Automaton"]

_MAX_CELLS = 2**31  # a cell is found by a 32-bit number


class Automaton(NamedTuple):
    """Tables of N states, C classes and a vocabulary of V tokens, on one device. Build it with `of`.

    `token_class` [V] int16, `next` [N, C] int16: the state after the token, `flags` [N, C] uint8: what
    reading it means (`Flag`). `every_n`: a boundary each time so many reasoning tokens are passed, 0 = off.
    """

    token_class: torch.Tensor
    next: torch.Tensor
    flags: torch.Tensor
    every_n: int = 0

    @classmethod
    def of(
        cls,
        token_class: Sequence[int] | Any,
        next: Sequence[Sequence[int]] | Any,
        flags: Sequence[Sequence[int]] | Any,
        *,
        every_n: int = 0,
        device: torch.device | str = "cpu",
    ) -> Automaton:
        """Checked tables from anything that `torch.as_tensor` takes; copied, so later changes do not count.

        Raises `ValueError` where a table would lead outside another one.
        """
        classes, after, bits = (torch.as_tensor(table) for table in (token_class, next, flags))
        square = classes.ndim == 1 and after.ndim == 2 and after.shape == bits.shape
        if not square or 0 in (classes.numel(), after.numel()):
            shapes = ", ".join(str(tuple(table.shape)) for table in (classes, after, bits))
            raise ValueError(f"tables {shapes} are no automaton. Give [V], [N, C] and [N, C], not empty.")
        states, width = after.shape
        for name, table, bound in (("class", classes, width), ("state", after, states), ("flag", bits, 32)):
            if int(table.min()) < 0 or int(table.max()) >= bound:
                raise ValueError(f"a {name} is not in 0..{bound - 1}. Build the tables anew.")
        if max(states, width) > 2**15 or states * width > _MAX_CELLS:
            raise ValueError(f"{states} states by {width} classes do not fit int16. Merge equal ones first.")
        return cls(
            classes.to(device, torch.int16, copy=True).contiguous(),
            after.to(device, torch.int16, copy=True).contiguous(),
            bits.to(device, torch.uint8, copy=True).contiguous(),
            every_n,
        )
