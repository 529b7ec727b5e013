"""What a method without a guarantee per trace found: for tables and reports, never for stopping."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from desist.calibration.certificate import CannotCertify

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
