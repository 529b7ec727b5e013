"""A drift detector in service: users thinned, state kept in a folder, started anew when its time comes.

Knows detector, reference and folder. Does not know requests: its caller says what was seen, and whose it was.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Any

from desist.calibration.drift import ALARM_EVERY, DriftDetector
from desist.calibration.drift_reference import DriftReference
from desist.calibration.monitor_folder import MonitorFolder

__all__ = ["DriftWatch", "Thinner"]

GAP = 200


class Thinner:
    """Lets one user's trace through at most once in `gap` traces: one user's traces resemble each other.

    Keeps salted hashes of at most `gap` keys. Who is let through depends on keys only, never on traces.
    """

    def __init__(self, gap: int = GAP, salt: str = "") -> None:
        self.gap, self._salt = gap, salt.encode()[:64]
        self._seen: OrderedDict[str, int] = OrderedDict()
        self.n = self.dropped = 0

    def admits(self, key: str | None) -> bool:
        """Whether this trace counts; a trace without a key always does."""
        if key is not None and self.gap > 0:
            digest = hashlib.blake2b(key.encode(), digest_size=8, key=self._salt).hexdigest()
            last = self._seen.get(digest)
            if last is not None and self.n - last < self.gap:
                self.dropped += 1
                return False
            self._seen[digest] = self.n
            self._seen.move_to_end(digest)
            while len(self._seen) > self.gap:
                self._seen.popitem(last=False)
        self.n += 1
        return True

    def state(self) -> dict[str, Any]:
        return {"n": self.n, "dropped": self.dropped, "seen": list(self._seen.items())}

    def restore(self, state: dict[str, Any]) -> None:
        self.n, self.dropped = int(state["n"]), int(state["dropped"])
        self._seen = OrderedDict((str(key), int(at)) for key, at in state["seen"])


class DriftWatch:
    """The detector of one certificate. With `folder` it goes on where it was, also after a kill.

    `name`: under which the state is kept. A state made for another reference (another certificate, policy
    or calibration set) is not used: the detector starts anew. `restarted` says that this happened.
    """

    def __init__(
        self,
        reference: DriftReference,
        *,
        name: str = "drift",
        folder: MonitorFolder | None = None,
        alarm_every: float = ALARM_EVERY,
        gap: int = GAP,
        seed: int | None = None,
    ) -> None:
        self.reference, self.name, self._folder = reference, name, folder
        found = folder.load(f"drift-{name}") if folder is not None else None
        saved = found if found is not None and found["key"] == reference.key else None
        self.restarted = found is not None and saved is None
        if saved is not None:
            self._seed, self._salt = int(saved["seed"]), str(saved["salt"])
        else:
            self._seed = secrets.randbits(53) if seed is None else seed
            self._salt = secrets.token_hex(16)
        self.detector: DriftDetector = reference.detector(seed=self._seed, alarm_every=alarm_every)
        self.thinner = Thinner(gap, self._salt)
        if saved is not None:
            self.detector.restore(saved["detector"])
            self.thinner.restore(saved["thinner"])

    @property
    def alarmed(self) -> bool:
        return self.detector.alarm_at is not None

    @property
    def leading(self) -> str:
        """The statistic that holds most of the evidence."""
        shares = self.detector.evidence.shares
        return self.reference.statistics[shares.index(max(shares))]

    def observe(self, values: tuple[float, ...], key: str | None = None) -> bool:
        """Take one trace (`key`: whose). Saved when this returns. True if it raised the alarm."""
        if not self.thinner.admits(key):
            return False
        raised = self.detector.observe(values)
        self.save()
        return raised

    def reset(self) -> None:
        """End an alarm that was looked into: evidence starts anew, histories stay."""
        self.detector.reset()
        self.save()

    def save(self) -> None:
        if self._folder is None:
            return
        state = {
            "key": self.reference.key,
            "seed": self._seed,
            "salt": self._salt,
            "detector": self.detector.state(),
            "thinner": self.thinner.state(),
        }
        self._folder.save(f"drift-{self.name}", state)
