"""The drift detector on simulated traces: false alarms, speed, memory, delay.

    python -m benchmarks.drift              1,000,000 exchangeable traces, stopped by an active policy
    python -m benchmarks.drift --traces 100000 --runs 20 --json

False alarms must be at most one in `alarm_every` traces: the count is held against the Poisson limit of
that rate. The same stream with a history of UNSTOPPED calibration traces shows why they must be replayed
under the active policy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from typing import Any

import numpy as np
from scipy.stats import poisson

from benchmarks.drift_streams import LAM, MILD, STRONG, Shift, simulate
from desist.calibration.drift import DriftDetector
from desist.calibration.drift_reference import build_reference
from desist.controller.core import Policy

POLICY = Policy("probe", lam=LAM)
_CHUNK = 20_000


def detector(seed: int, warm: int, alarm_every: float, lam: float | None = LAM) -> DriftDetector:
    """A detector warmed on `warm` simulated calibration traces, stopped at `lam`."""
    rng = np.random.default_rng([seed, 1])
    return build_reference(simulate(rng, warm, lam), POLICY, seed=seed).detector(
        seed=seed, alarm_every=alarm_every
    )


def false_alarms(seed: int, traces: int, warm: int, alarm_every: float) -> dict[str, Any]:
    """Alarms on an exchangeable stream (evidence starts anew after each), updates a second, state size."""
    watched = detector(seed, warm, alarm_every)
    rng = np.random.default_rng([seed, 2])
    alarms, spent, sizes = 0, 0.0, []
    for start in range(0, traces, _CHUNK):
        rows = simulate(rng, min(_CHUNK, traces - start)).tolist()
        began = time.perf_counter()
        for row in rows:
            if watched.observe(row):
                alarms += 1
                watched.reset()
        spent += time.perf_counter() - began
        sizes.append(len(json.dumps(watched.state())))
    limit = int(poisson.ppf(0.99, traces / alarm_every))
    return {
        "traces": traces,
        "alarm_every": alarm_every,
        "alarms": alarms,
        "expected_at_most": traces / alarm_every,
        "limit_99": limit,
        "within": alarms <= limit,
        "updates_per_second": round(traces / spent),
        "state_bytes_first": sizes[0],
        "state_bytes_last": sizes[-1],
    }


def delays(seed: int, shift: Shift, after: int, warm: int, alarm_every: float, runs: int) -> dict[str, Any]:
    """Traces from the change to the alarm, over `runs` streams; at most 20,000 are waited for."""
    found, early = [], 0
    for run in range(runs):
        watched = detector(seed + run, warm, alarm_every)
        rng = np.random.default_rng([seed + run, 3])
        for row in simulate(rng, after).tolist():
            if watched.observe(row):
                early += 1
                watched.reset()
        waited = 0
        while waited < 20_000 and watched.alarm_at is None:
            for row in simulate(rng, 1000, shift=shift).tolist():
                waited += 1
                if watched.observe(row):
                    found.append(waited)
                    break
    low, middle, high = np.quantile(found, [0.1, 0.5, 0.9]) if found else (np.nan,) * 3
    return {
        "after": after,
        "found": len(found),
        "runs": runs,
        "before_the_change": early,
        "median": float(middle),
        "q10": float(low),
        "q90": float(high),
    }


def peak_memory(seed: int, traces: int, warm: int) -> int:
    """Bytes that `traces` updates add at their peak (rows not counted)."""
    watched = detector(seed, warm, 1e5)
    rows = simulate(np.random.default_rng(seed), traces).tolist()
    for row in rows[:5000]:
        watched.observe(row)
    tracemalloc.start()
    for row in rows[5000:]:
        watched.observe(row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=1_000_000)
    parser.add_argument("--warm", type=int, default=2000, help="calibration traces")
    parser.add_argument("--alarm-every", type=float, default=10_000, help="for the false-alarm count")
    parser.add_argument("--runs", type=int, default=20, help="streams for each delay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    result: dict[str, Any] = {"null": false_alarms(given.seed, given.traces, given.warm, given.alarm_every)}
    unstopped = detector(given.seed, given.warm, given.alarm_every, lam=None)
    rows = simulate(np.random.default_rng([given.seed, 4]), 5000).tolist()
    result["unstopped_history_alarms_after"] = next(
        (n for n, row in enumerate(rows, 1) if unstopped.observe(row)), None
    )
    result["peak_bytes"] = peak_memory(given.seed, min(50_000, given.traces), given.warm)
    result["delays"] = {
        f"{name} after {after}": delays(given.seed, shift, after, given.warm, 1e5, given.runs)
        for name, shift in (("mild", MILD), ("strong", STRONG), ("longer", Shift(longer=1.1)))
        for after in (500, 2000, 6000)
    }
    if given.as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    null = result["null"]
    lines = [
        f"{null['alarms']} alarms on {null['traces']:,} exchangeable traces, stopped by the active policy; at one "
        f"in {null['alarm_every']:,.0f} at most {null['expected_at_most']:.0f} are expected (99 % limit {null['limit_99']}): "
        f"{'within' if null['within'] else 'OUTSIDE'} the bound",
        f"{null['updates_per_second']:,} updates a second; state {null['state_bytes_first']} bytes at first, "
        f"{null['state_bytes_last']} at the end; {result['peak_bytes']} bytes allocated at the peak",
        f"with a history of unstopped traces: alarm after {result['unstopped_history_alarms_after']} traces",
        "",
        f"delay in traces, one false alarm in 100,000, {given.warm} calibration traces",
        "| change | found | median | 10 % to 90 % | alarms before |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {row['found']} of {row['runs']} | {row['median']:.0f} | {row['q10']:.0f} to {row['q90']:.0f} | {row['before_the_change']} |"
        for name, row in result["delays"].items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
