"""What a step leaves for the host to read later: copies that are on their way, and wait for nobody.

Rows come as columns: position and token of all rows; behind them, where the kernels ran, the last token that
may have opened a zone and the scores. Knows tensors only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from desist.kernels.decide_and_force import Record, Ring, RingCopy

__all__ = ["StepCopy"]


class StepCopy:
    """Columns [2 or 5, R] int32 of a step, the ids sampled [requests, 1 or more] and how many [requests].

    `ring` None: nothing was decided in this step.
    """

    def __init__(
        self, columns: torch.Tensor, ring: Ring | None, sampled: torch.Tensor, num_sampled: torch.Tensor
    ) -> None:
        self._ring: RingCopy | None = None if ring is None else ring.copy_out()
        self._parts = [_to_host(part) for part in (columns, sampled, num_sampled)]
        self._done: Any = None
        if columns.is_cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(torch.cuda.current_stream(columns.device))

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        """Waits until the copy has arrived, like all that follow."""
        columns: npt.NDArray[np.int32] = self._read(0)
        return columns

    @property
    def sampled(self) -> npt.NDArray[np.int64]:
        sampled: npt.NDArray[np.int64] = self._read(1)
        return sampled

    @property
    def num_sampled(self) -> npt.NDArray[np.int32]:
        num_sampled: npt.NDArray[np.int32] = self._read(2)
        return num_sampled

    def records(self, since: int) -> tuple[list[Record], int, int]:
        """What was decided after the first `since` records, how many there are by now, and how many of the
        new ones were written over before they were copied."""
        if self._ring is None:
            return [], since, 0
        return self._ring.records(since), self._ring.head(), self._ring.lost(since)

    def _read(self, part: int) -> Any:
        if self._done is not None:
            self._done.synchronize()
        return self._parts[part].numpy()


def _to_host(part: torch.Tensor) -> torch.Tensor:
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
    return host.copy_(part, non_blocking=True)
