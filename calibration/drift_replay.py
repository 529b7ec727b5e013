"""What a drift detector would do on saved traces: false alarms where nothing changes, delay where it does.

Knows statistics of traces as arrays. Where nothing changes is made by permutation: traces of one file in
random order are exchangeable, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from desist.calibration.drift import DriftDetector
from desist.calibration.drift_reference import FEWEST, build_reference
from desist.controller.core import Policy
from desist.data.errors import CalibrationError

__all__ = ["DriftReplay", "replay_drift"]

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DriftReplay:
    """What `runs` replays showed.

    `null_traces`, `null_alarms`: traces seen and alarms raised where nothing changed; at most one alarm in
    `alarm_every` traces is promised. `delays`: traces from the change to the alarm, of the runs that found
    it; `missed`: runs that saw all `n_later` traces without an alarm (0 and 0 without later traces).
    """

    runs: int
    alarm_every: float
    null_traces: int
    null_alarms: int
    n_later: int
    delays: tuple[int, ...]
    missed: int
    leading: str | None

    def as_json(self) -> dict[str, Any]:
        quantiles = np.quantile(self.delays, [0.1, 0.5, 0.9]).tolist() if self.delays else [None] * 3
        return {
            "runs": self.runs,
            "alarm_every": self.alarm_every,
            "null_traces": self.null_traces,
            "null_alarms": self.null_alarms,
            "false_alarm_rate": self.null_alarms / self.null_traces if self.null_traces else None,
            "false_alarm_bound": 1 / self.alarm_every,
            "later_traces": self.n_later,
            "found": len(self.delays),
            "missed": self.missed,
            "delay": dict(zip(("q10", "median", "q90"), quantiles, strict=True)),
            "leading": self.leading,
        }


def replay_drift(
    before: Table,
    policy: Policy,
    *,
    alarm_every: float,
    later: Table | None = None,
    runs: int = 20,
    seed: int = 0,
) -> DriftReplay:
    """Replay statistics `before` [n, k] and `later` [m, k] (the change), `runs` times, in random order.

    Half of `before` is the history, the other half the stream; `later` keeps its own order in the first run.
    """
    half = len(before) // 2
    if half < FEWEST or runs < 1:
        raise CalibrationError(
            f"{len(before)} traces and {runs} runs: give at least {2 * FEWEST} traces (half of them are the "
            "history) and one run."
        )
    rng = np.random.default_rng(seed)
    null_alarms, missed, delays, leading = 0, 0, [], None
    names = tuple(f"statistic {place}" for place in range(before.shape[1]))
    for run in range(runs):
        table = rng.permutation(before, axis=0)
        reference = build_reference(table[:half], policy, seed=seed + run, names=names)
        watched: DriftDetector = reference.detector(seed=seed + run, alarm_every=alarm_every)
        for row in table[half:].tolist():
            if watched.observe(row):
                null_alarms += 1
                watched.reset()
        if later is None or not len(later):
            continue
        began = watched.n
        for row in (later if run == 0 else rng.permutation(later, axis=0)).tolist():
            if watched.observe(row):
                break
        if watched.alarm_at is None:
            missed += 1
            continue
        delays.append(watched.alarm_at - began)
        shares = watched.evidence.shares
        leading = leading or names[shares.index(max(shares))]
    n_later = 0 if later is None else len(later)
    return DriftReplay(
        runs, alarm_every, runs * (len(before) - half), null_alarms, n_later, tuple(delays), missed, leading
    )
