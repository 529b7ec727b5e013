"""A watch that is killed in the middle of its writes, again and again, and looked at after each kill.

Run as a program: FILE SEED KILLS. Prints one JSON object a kill: what was acknowledged, what was found, and
whether the state found is the one that a watch has after that many traces.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import numpy as np

from desist.calibration.drift_reference import build_reference
from desist.calibration.drift_watch import DriftWatch
from desist.calibration.monitor_folder import MonitorFolder
from desist.controller.core import Policy

ROWS = np.random.default_rng(0).random((20_000, 4)).tolist()
REFERENCE = build_reference(ROWS[:300], Policy("probe", lam=0.5))


def work(path: str, acknowledged: int) -> None:
    with MonitorFolder(path) as folder:
        watch = DriftWatch(REFERENCE, folder=folder, seed=7)
        while True:
            watch.observe(tuple(ROWS[watch.detector.n]), key=f"user {watch.detector.n % 3000}")
            os.write(acknowledged, watch.detector.n.to_bytes(4))


def main() -> None:
    path, seed, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    alone = DriftWatch(REFERENCE, seed=7)
    for _ in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            work(path, write)
        os.close(write)
        told = os.read(read, 4)  # it has begun to write
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while piece := os.read(read, 1 << 16):
            told += piece
        os.close(read)
        last = int.from_bytes(told[len(told) // 4 * 4 - 4 :][:4]) if len(told) >= 4 else 0
        with MonitorFolder(path, write=False) as folder:
            found = DriftWatch(REFERENCE, folder=folder)
        while alone.detector.n < found.detector.n:
            alone.observe(tuple(ROWS[alone.detector.n]), key=f"user {alone.detector.n % 3000}")
        same = found.detector.state() == alone.detector.state() and found.thinner.n == alone.thinner.n
        print(json.dumps({"acknowledged": last, "found": found.detector.n, "same": same}), flush=True)


if __name__ == "__main__":
    main()
