"""Memory that nobody has written yet, made to be noticed where a kernel forgets to write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

__all__ = ["poisoned"]

#: In integers: of flags and verdicts, bits that would be noticed.
_RUBBISH = 99


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory holds NaN and rubbish, so that what a kernel forgot to write is seen."""
    empty: Callable[..., torch.Tensor] = torch.empty

    def rubbish(*size: Any, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        return made.fill_(torch.nan if made.is_floating_point() else _RUBBISH)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", rubbish)
        yield
