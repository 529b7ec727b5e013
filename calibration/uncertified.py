"""What a method without a guarantee per trace found: for tables and reports, never for stopping."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from desist.calibration.certificate import CannotCertify
from desist.calibration.paths import Paths, sweep
from desist.calibration.plan import Plan

__all__ = ["Uncertified"]


class Uncertified(CannotCertify):
    """A threshold behind which no guarantee stands (reason "no_guarantee"); its policy never stops.

    `lam`: the threshold the method gives, None where it gives none; `n_bad`, `risk` and `saved_fraction`:
    what it did on the very traces it was computed from.
    """

    added: ClassVar[tuple[str, ...]] = CannotCertify.added

    lam: float | None = None
    n_stopped: int = Field(default=0, ge=0)
    risk: float = 0.0
    saved_fraction: float = 0.0

    @classmethod
    def of(cls, plan: Plan, paths: Paths, lam: float | None) -> Uncertified:
        """What the threshold `lam` does on the paths that it was computed from."""
        table = sweep(paths, np.asarray([1.0 if lam is None else lam]))
        return cls(
            **dict(plan),
            reason="no_guarantee",
            n=paths.n,
            n_bad=int(table.losses[0]),
            lam=lam,
            n_stopped=int(table.stopped[0]),
            risk=float(table.risk[0]),
            saved_fraction=float(table.saved[0]),
        )
