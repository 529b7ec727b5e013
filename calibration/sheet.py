"""Several levels on one sheet: a certificate for each alpha, from the same problems.

Each statement holds by itself with probability 1 - delta. Whoever looks at the sheet and then keeps the level
that looks best needs statements that hold together: delta / K for K levels. Both are on the sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import exact, exact_text
from desist.calibration.prepared import Prepared, prepare
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["OperatingPoint", "Sheet", "operating_sheet", "sheet_of"]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One level: `alone` holds by itself at delta, `together` with all others of the sheet at delta / K."""

    alpha: Fraction
    alone: Certificate | CannotCertify
    together: Certificate | CannotCertify


@dataclass(frozen=True, slots=True)
class Sheet:
    """Points by rising alpha. `delta_together` = delta / K."""

    delta: Fraction
    points: tuple[OperatingPoint, ...]

    @property
    def delta_together(self) -> Fraction:
        return self.delta / len(self.points)

    @property
    def note(self) -> str:
        """How the sheet is to be read."""
        count = len(self.points)
        return (
            f"Each of the {count} statements holds alone with probability {exact_text(1 - self.delta)}. To "
            f"choose after looking, use those made with delta/{count} = {exact_text(self.delta_together)}."
        )

    def as_rows(self) -> list[dict[str, Any]]:
        """Plain values, two for each level."""
        return [
            {
                "alpha": exact_text(point.alpha),
                "holds": holds,
                "certified": isinstance(found, Certificate),
                "threshold": getattr(found, "lam", None),
                "risk": getattr(found, "risk", None),
                "saved_fraction": getattr(found, "saved_fraction", None),
                "needed_n": getattr(found, "needed_n", None),
            }
            for point in self.points
            for holds, found in (("alone", point.alone), ("together", point.together))
        ]


def operating_sheet(
    traces: Iterable[Trace], alphas: Sequence[object], *, delta: object, **settings: Any
) -> Sheet:
    """`calibrate` at each of `alphas`, alone and together; `settings` as in `calibrate`.

    Raises CalibrationError for no alpha or repeated ones.
    """
    levels = _levels(alphas)
    return sheet_of(prepare(traces, alpha=levels[0], delta=delta, **settings), levels)


def sheet_of(prepared: Prepared, alphas: Sequence[object]) -> Sheet:
    """The sheet of traces that are prepared already, with the delta of their plan.

    Raises CalibrationError for no alpha or repeated ones.
    """
    levels, whole = _levels(alphas), prepared.plan.delta
    return Sheet(
        whole,
        tuple(
            OperatingPoint(alpha, prepared.certify(alpha), prepared.certify(alpha, whole / len(levels)))
            for alpha in levels
        ),
    )


def _levels(alphas: Sequence[object]) -> list[Fraction]:
    levels = sorted(exact(alpha) for alpha in alphas)
    if not levels or len(set(levels)) != len(levels):
        raise CalibrationError(f"alphas are {list(alphas)!r}. Give at least one, each once.")
    return levels
