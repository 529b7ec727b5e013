"""Does a score point the right way: is it higher where a stop is good? A reversed one hardly ever stops.

Knows the numbers that are compared with a threshold, and labels; chooses nothing, is part of no guarantee.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from desist.calibration.paths import Paths

__all__ = ["Direction", "direction"]


class Direction(BaseModel):
    """`auroc`: P(score of a good stop > score of a bad one) + half of P(equal), over all `boundaries`.

    None where all stops are good, or all bad: then nothing tells the direction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    auroc: float | None
    boundaries: int

    @property
    def wrong(self) -> bool:
        """Whether a higher score goes with a worse place to stop."""
        return self.auroc is not None and self.auroc < 0.5


def direction(paths: Paths) -> Direction:
    """The direction of what `paths` compare with the threshold (smoothed, and after patience)."""
    here = np.isfinite(paths.statistic)
    good, bad = paths.statistic[here & ~paths.bad], paths.statistic[here & paths.bad]
    if not len(good) or not len(bad):
        return Direction(auroc=None, boundaries=len(good) + len(bad))
    below = np.sort(
        bad
    )  # won and half-won pairs by rank; scipy.stats would cost half a second at every start
    won = sum(float(np.searchsorted(below, good, side).sum()) for side in ("left", "right")) / 2
    return Direction(auroc=won / (len(good) * len(bad)), boundaries=len(good) + len(bad))
