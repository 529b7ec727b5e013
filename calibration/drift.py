"""The drift detector: has the stream of traces changed since the calibration?

Conformal p-values of label-free statistics against a growing history, turned into evidence by a
Shiryaev-Roberts e-detector. Constant memory, constant time per trace. Knows numbers only: what a
statistic is stands in `drift_statistics`, where histories come from in `drift_reference`.

Why bounded memory costs no validity. The bins of a history are fixed by traces that are never counted in
it. Given them, the bin numbers of all other calibration traces and of the stream are exchangeable if the
traces are, and the rank of a new bin number among all earlier ones, ties broken by a uniform number, is
uniform and independent of the ranks before it (Vovk, Gammerman and Shafer 2005, theorem 8.2). Bins only
cost power. A history that does NOT grow has no such property: its p-values share one reference and their
product explodes on long exchangeable streams, so that nothing here takes a frozen history.

Why the alarm means something. R = sum over all start times of a test martingale (mixture of bets that may
change sides: the jumper of Vovk et al. 2005) is an e-detector: E[R at any stopping time] <= E[that time]
without a change (Shin, Ramdas and Rinaldo 2024). So the mean number of exchangeable traces until
R >= A is at least A: at most one false alarm in A traces. The mean over several statistics keeps that,
however they depend on each other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from desist.data.errors import CalibrationError

__all__ = ["ALARM_EVERY", "DriftDetector", "RankHistory", "ShiryaevRoberts"]

ALARM_EVERY = 100_000
"""Default mean number of exchangeable traces between false alarms."""

_JUMP = 0.01
_BETS = 7
_OVERFLOW = 1e100
_BLOCK = 4096  # uniform numbers made at once; block b depends on the seed and b only


class RankHistory:
    """All values of one statistic so far, as counts in bins.

    `edges`: rising upper ends; values up to edges[0] fall into bin 0, those above the last into the last.
    """

    __slots__ = ("counts", "edges", "n")

    def __init__(self, edges: Sequence[float], counts: Sequence[int] | None = None) -> None:
        self.edges = list(edges)
        self.counts = list(counts) if counts is not None else [0] * (len(self.edges) + 1)
        if len(self.counts) != len(self.edges) + 1 or sorted(set(self.edges)) != self.edges:
            raise CalibrationError(
                f"{len(self.edges)} edges and {len(self.counts)} counts make no history: edges must rise, "
                "and there is one count more than edges."
            )
        self.n = sum(self.counts)

    def p_value(self, value: float, uniform: float) -> float:
        """Take `value` in and return its rank among all values so far, in [0, 1]; ties by `uniform`."""
        place = bisect_left(self.edges, value)
        counts = self.counts
        counts[place] += 1
        self.n += 1
        return (sum(counts[place + 1 :]) + uniform * counts[place]) / self.n


class ShiryaevRoberts:
    """The e-detector on `n` p-values a step; `alarm_every` is A.

    Seven bets a p-value: none, too small or too large (mild, strong), too spread, too concentrated. R is
    kept as exp(scale) times small numbers, so that it neither overflows nor vanishes: each step adds 1.
    """

    __slots__ = ("_fresh", "_limit", "_log_limit", "_n", "_scale", "bets")

    def __init__(self, n: int, alarm_every: float = ALARM_EVERY) -> None:
        if n < 1 or not alarm_every > 1:
            raise CalibrationError(
                f"{n} statistics and one false alarm in {alarm_every} traces: give at least one statistic "
                "and more than one trace."
            )
        self._n, self._log_limit = n, math.log(alarm_every)
        self.bets: list[list[float]] = []
        self._scale = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget all evidence (not the histories)."""
        self.bets = [[0.0] * _BETS for _ in range(self._n)]
        self._rescale(0.0)

    @property
    def log_evidence(self) -> float:
        """log R; -inf before the first step."""
        total = sum(map(sum, self.bets))
        return self._scale + math.log(total) if total > 0 else -math.inf

    @property
    def shares(self) -> list[float]:
        """How much of R each statistic holds; sums to 1."""
        parts = [sum(each) for each in self.bets]
        total = sum(parts)
        return [part / total if total > 0 else 1 / self._n for part in parts]

    def step(self, p_values: Iterable[float]) -> bool:
        """One trace. True where R has reached A."""
        total = 0.0
        fresh, share, bets = self._fresh, _JUMP / _BETS, self.bets
        for place, p in enumerate(p_values):
            x = p - 0.5
            spread = 6.0 * x * x - 0.5
            a, b, c, d, e, f, g = bets[place]
            # What each bet holds: the capital that stays, its part of what jumps, and what starts now.
            mixed = share * (a + b + c + d + e + f + g) + fresh
            keep = 1.0 - _JUMP
            a = keep * a + mixed
            b = (keep * b + mixed) * (1.0 + x)
            c = (keep * c + mixed) * (1.0 - x)
            d = (keep * d + mixed) * (1.0 + 2.0 * x)
            e = (keep * e + mixed) * (1.0 - 2.0 * x)
            f = (keep * f + mixed) * (1.0 + spread)
            g = (keep * g + mixed) * (1.0 - spread)
            bets[place] = [a, b, c, d, e, f, g]
            total += a + b + c + d + e + f + g
        alarm = total >= self._limit
        if total > _OVERFLOW:
            self.bets = [[value / total for value in each] for each in bets]
            self._rescale(self._scale + math.log(total))
        return alarm

    def _rescale(self, scale: float) -> None:
        self._scale = scale
        self._fresh = math.exp(-scale) / (_BETS * self._n)
        self._limit = math.exp(self._log_limit - scale)

    def state(self) -> dict[str, Any]:
        return {"bets": self.bets, "scale": self._scale}

    def restore(self, state: dict[str, Any]) -> None:
        self.bets = [[float(value) for value in each] for each in state["bets"]]
        if len(self.bets) != self._n or any(len(each) != _BETS for each in self.bets):
            raise CalibrationError("the saved evidence has another shape than this detector. Start it anew.")
        self._rescale(float(state["scale"]))


class DriftDetector:
    """Histories and evidence of one stream. `seed` gives the numbers that break ties.

    `histories` are warmed: they hold calibration traces already. An alarm stays until `reset`.
    """

    def __init__(
        self, histories: Sequence[RankHistory], *, seed: int = 0, alarm_every: float = ALARM_EVERY
    ) -> None:
        self.histories = list(histories)
        self.evidence = ShiryaevRoberts(len(self.histories), alarm_every)
        self.alarm_every, self.seed = alarm_every, seed
        self.n = 0
        self.alarm_at: int | None = None
        self._block = -1
        self._uniforms: list[float] = []

    def observe(self, values: Sequence[float]) -> bool:
        """Take one trace's statistics, one for each history. True if this trace raised the alarm."""
        width = len(self.histories)
        if len(values) != width:
            raise CalibrationError(f"{len(values)} statistics given, this detector watches {width}.")
        for value in values:
            if value != value:
                raise CalibrationError(f"a statistic of the trace is not a number: {tuple(values)}.")
        start = self.n * width
        ranks = []
        for place, history in enumerate(self.histories):
            block, offset = divmod(start + place, _BLOCK)
            if block != self._block:
                self._fill(block)
            ranks.append(history.p_value(values[place], self._uniforms[offset]))
        self.n += 1
        if self.evidence.step(ranks) and self.alarm_at is None:
            self.alarm_at = self.n
            return True
        return False

    def reset(self) -> None:
        """End the alarm. Histories stay: what they hold is still exchangeable with what comes, or drifts."""
        self.alarm_at = None
        self.evidence.reset()

    def _fill(self, block: int) -> None:
        bits = np.random.Philox(key=self.seed % (1 << 128), counter=block * _BLOCK)
        self._uniforms = np.random.Generator(bits).random(_BLOCK).tolist()
        self._block = block

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON values (a few kilobytes, whatever was seen)."""
        return {
            "n": self.n,
            "alarm_at": self.alarm_at,
            "counts": [history.counts for history in self.histories],
            **self.evidence.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()` of a detector with the same edges."""
        counts = state["counts"]
        if len(counts) != len(self.histories):
            raise CalibrationError("the saved state watches other statistics. Start it anew.")
        self.histories = [
            RankHistory(history.edges, saved) for history, saved in zip(self.histories, counts, strict=True)
        ]
        self.evidence.restore(state)
        self.n, self.alarm_at = int(state["n"]), state["alarm_at"]
