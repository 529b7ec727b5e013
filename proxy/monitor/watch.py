"""Watches each certificate of a running app: drift of its traces, loss of its audits; on alarm, shadow.

Knows operating points, finished choices and their counts, never texts. What it holds back is the STOP: a
request under an alarmed certificate runs to its end, scored as before, so that the watch goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from desist.calibration.audits_bound import LossAlarm
from desist.calibration.drift_statistics import trace_statistics
from desist.calibration.drift_watch import DriftWatch
from desist.calibration.monitor_folder import MonitorFolder
from desist.controller.core import StopReason
from desist.data.errors import ArtifactMismatch
from desist.proxy.access.tenants import EVERYONE, Tenant
from desist.proxy.control import OperatingPoint, Resolved
from desist.proxy.engines.base import Finished, GenerationRequest
from desist.proxy.settings import MonitorSettings
from desist.proxy.telemetry.metrics import Metrics

__all__ = ["Watch", "under_certificate"]

log = logging.getLogger(__name__)


def under_certificate(resolved: Resolved, request: GenerationRequest, max_tokens: int | None) -> bool:
    """Whether a request is one of those that its certificate speaks of, told before it starts.

    Not so: another sampler or threshold, a budget of its own, fewer tokens than calibrated (`max_tokens`).
    """
    point, control, asked = resolved.point, resolved.control, request.sampling.max_tokens
    return (
        point is not None
        and point.policy.lam is not None
        and point.policy.certified
        and control.policy == point.policy
        and control.mode != "off"
        and control.budget is None
        and (asked is None or max_tokens is None or asked >= max_tokens)
    )


class Watch:
    """The alarms of one app. `folder`: where they survive a restart (None: nowhere)."""

    def __init__(self, settings: MonitorSettings, metrics: Metrics, folder: MonitorFolder | None) -> None:
        self._settings, self._metrics, self._folder = settings, metrics, folder
        self._drift: dict[str, DriftWatch] = {}
        self._losses: dict[str, LossAlarm] = {}
        self._blind: dict[str, str] = {}
        self._known: set[str] = set()

    def arm(self, points: Iterable[OperatingPoint]) -> None:
        """Watch these certificates. Others are watched from their first request on."""
        for point in points:
            self._armed(point)

    def _armed(self, point: OperatingPoint, tenant: Tenant = EVERYONE) -> str:
        """The name under which a certificate is watched: another certificate of that file has another.

        A tenant with a detector of its own is watched apart, from its first request on.
        """
        name = f"{point.name or 'certificate'}-{point.digest[:8]}".rstrip("-")
        if tenant.separate_drift:
            name = f"{name}-of-{tenant.name}"
        if name not in self._known:
            self._known.add(name)
            if point.policy.lam is not None:
                self._arm(name, point)
        return name

    def _arm(self, name: str, point: OperatingPoint) -> None:
        if (alarm := self._loss_alarm(name, point)) is not None:
            self._losses[name] = alarm
        if not self._settings.drift:
            self._blind[name] = "monitor.drift is off"
        elif point.drift is None:
            self._blind[name] = "it has no .drift file: `desist monitor TRACES --certificate FILE` makes one"
        else:
            try:
                point.drift.require(point.policy, point.digest or None)
            except ArtifactMismatch as mismatch:
                self._blind[name] = str(mismatch)
            else:
                self._drift[name] = DriftWatch(
                    point.drift,
                    name=name,
                    folder=self._folder,
                    alarm_every=self._settings.alarm_every,
                    gap=self._settings.gap,
                )
        if name in self._blind and point.policy.certified:
            log.info("drift is not watched for certificate %s: %s", name, self._blind[name])
        self._show(name)

    def capped(self, resolved: Resolved, tenant: Tenant = EVERYONE) -> Resolved:
        """The control after alarms: "active" becomes "shadow" under an alarmed certificate."""
        point = resolved.point
        if point is None or resolved.control.mode != "active" or self._settings.on_alarm != "shadow":
            return resolved
        why = self.alarm(self._armed(point, tenant))
        if why is None:
            return resolved
        control = replace(resolved.control, mode="shadow")
        return replace(resolved, control=control, uncontrolled=f"fallen back to shadow: {why}")

    def alarm(self, name: str) -> str | None:
        """Why certificate `name` is in alarm; None: it is not."""
        watch, losses = self._drift.get(name), self._losses.get(name)
        if watch is not None and watch.alarmed:
            return f"traces under certificate {name} have drifted (most of all {watch.leading})"
        if losses is not None and losses.alarm_at is not None:
            return f"audits of certificate {name} lose more answers than it tolerates"
        return None

    def saw(
        self,
        resolved: Resolved,
        request: GenerationRequest,
        finished: Finished,
        *,
        user: str | None,
        limit: int | None,
        tenant: Tenant = EVERYONE,
    ) -> None:
        """Take a finished choice (the first of its request): what its certificate's policy left of it.

        `user`: whose it is, so that one user's traces are thinned. `limit`: max_tokens of the calibration.
        """
        point = resolved.point
        if point is None or (watch := self._drift.get(name := self._armed(point, tenant))) is None:
            return
        if finished.uncontrolled or not under_certificate(resolved, request, limit):
            self._metrics.drift_left_out.labels("outside").inc()
            return
        if finished.stop_reason is StopReason.MANUAL:
            self._metrics.drift_left_out.labels("manual").inc()
            return
        stop = finished.decision or finished.shadow
        scored = [(each.position, each.scores.get(point.policy.scorer)) for each in finished.boundaries]
        values = trace_statistics(
            scored, None if stop is None else stop.position, finished.usage.reasoning_tokens
        )
        if watch.observe(values, user):
            log.error(
                "drift alarm for certificate %s after %d traces (most of all %s); %s",
                name,
                watch.detector.n,
                watch.leading,
                self._consequence(),
            )
        self._show(name)

    def lost(self, point: OperatingPoint, loss: float, tenant: Tenant = EVERYONE) -> None:
        """Take the verdict of one audit."""
        name = self._armed(point, tenant)
        alarm = self._losses.get(name)
        if alarm is None:
            return
        if alarm.observe(loss):
            log.error(
                "audit alarm for certificate %s after %d audits: its risk is above %s; %s",
                name,
                alarm.n,
                float(point.alpha),
                self._consequence(),
            )
        if self._folder is not None:
            self._folder.save(f"losses-{name}", alarm.state())
        self._show(name)

    def detail(self) -> dict[str, Any]:
        """For /readyz: what is watched, what is not and why, and what is in alarm."""
        told: dict[str, Any] = {}
        for name in sorted({*self._drift, *self._losses, *self._blind}):
            watch, losses = self._drift.get(name), self._losses.get(name)
            told[name] = {
                "alarm": self.alarm(name),
                "drift_traces": watch.detector.n if watch else None,
                "drift_not_watched": self._blind.get(name),
                "audits": losses.n if losses else None,
            }
        return told

    def _loss_alarm(self, name: str, point: OperatingPoint) -> LossAlarm | None:
        """None for a certificate whose loss audits cannot measure (harm needs right answers)."""
        if point.loss != "consistency":
            return None
        alarm = LossAlarm(point.alpha, self._settings.audit_alarm_every)
        saved = self._folder.load(f"losses-{name}") if self._folder is not None else None
        if saved is not None:
            alarm.restore(saved)
        return alarm

    def _consequence(self) -> str:
        told = "its requests run in shadow from now on, nothing is stopped"
        return told if self._settings.on_alarm == "shadow" else "monitor.on_alarm is tell: stops go on"

    def _show(self, name: str) -> None:
        watch = self._drift.get(name)
        if watch is not None:
            self._metrics.drift_evidence.labels(name).set(watch.detector.evidence.log_evidence)
        self._metrics.alarm.labels(name).set(self.alarm(name) is not None)
