"""How much disk hidden states will need, before anything is run: rows x layers x width x bytes.

Knows the two stores of `features` (a row a boundary, the taps side by side; a row a reasoning token) and no
file. A row is known to the byte; how many rows come is bounded by tokens, or assumed, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from desist.probes.shards import HiddenDtype

__all__ = ["TOKENS_PER_BOUNDARY", "HiddenDisk", "hidden_disk"]

#: Reasoning tokens between two boundaries: the mean of the built-in reasoner's 2,500 calibration traces.
TOKENS_PER_BOUNDARY = 29
_INDEX = 4  # bytes of a row's own number


@dataclass(frozen=True, slots=True)
class HiddenDisk:
    """`boundary_row`, `token_row`: bytes of one row (0: not kept). `max_tokens`: of a trace; None: not known.

    `tokens_per_boundary`: as the profile says, else `TOKENS_PER_BOUNDARY`, which is a guess (`assumed`).
    """

    traces: int
    taps: int
    hidden_size: int
    item: int
    boundary_row: int
    token_row: int
    max_tokens: int | None
    tokens_per_boundary: int
    assumed: bool

    @property
    def boundary_bytes(self) -> int | None:
        """Of all boundaries, if every trace is as long as it may be."""
        if self.max_tokens is None:
            return None
        return self.traces * (self.max_tokens // self.tokens_per_boundary) * self.boundary_row

    @property
    def token_bytes(self) -> int | None:
        """Of all reasoning tokens: no trace can be longer."""
        return None if self.max_tokens is None else self.traces * self.max_tokens * self.token_row

    @property
    def total_bytes(self) -> int | None:
        if self.boundary_bytes is None or self.token_bytes is None:
            return None
        return self.boundary_bytes + self.token_bytes

    def words(self) -> str:
        """One line with the product that was taken."""
        shape = f"{self.hidden_size} x {self.item} bytes"
        parts = []
        if self.boundary_row:
            parts.append(
                f"{self.taps} layers x {shape} a boundary"
                + self._all(self.boundary_bytes, f"one in {self.tokens_per_boundary} tokens", self.assumed)
            )
        if self.token_row:
            parts.append(f"1 layer x {shape} a token" + self._all(self.token_bytes, "all of them", False))
        return "hidden states: " + ("; ".join(parts) or "none kept")

    def _all(self, size: int | None, which: str, assumed: bool) -> str:
        if size is None:
            return " (how many is not known: no --max-tokens, and the model tells no context length)"
        guess = ", an assumption" if assumed else ""
        run = f"{self.traces:,} traces of {self.max_tokens:,} tokens"
        return f", {size / 1e9:,.3g} GB for {run} ({which}{guess})"


def hidden_disk(
    traces: int,
    *,
    taps: Sequence[int],
    token_tap: int | None,
    hidden_size: int,
    max_tokens: int | None,
    dtype: HiddenDtype = "float16",
    every_n: int | None = None,
) -> HiddenDisk:
    """The disk of a collection of `traces`. `every_n`: a boundary that often; None: at cues."""
    item = np.dtype(dtype).itemsize
    return HiddenDisk(
        traces=traces,
        taps=len(taps),
        hidden_size=hidden_size,
        item=item,
        boundary_row=len(taps) * hidden_size * item + _INDEX if taps else 0,
        token_row=0 if token_tap is None else hidden_size * item + _INDEX,
        max_tokens=max_tokens,
        tokens_per_boundary=every_n or TOKENS_PER_BOUNDARY,
        assumed=every_n is None,
    )
