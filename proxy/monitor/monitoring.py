"""Where an app and what watches it meet: started together, told of each request, closed together.

Knows the app's state, settings and engine. Watching and auditing themselves are in `watch` and `audits`,
which are loaded only when an app starts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from desist.proxy.engines.base import Finished, GenerationRequest
from desist.proxy.state import ProxyState

if TYPE_CHECKING:
    from desist.calibration.monitor_folder import MonitorFolder
    from desist.proxy.intake.accept import Intake
    from desist.proxy.monitor.audits import AuditDesk

__all__ = ["Monitoring", "audited", "saw", "start_monitoring"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What was started with an app."""

    audits: AuditDesk
    folder: MonitorFolder | None

    async def close(self) -> None:
        """Write the verdicts that are due, and let go of the folder."""
        await self.audits.settle()
        if self.folder is not None:
            self.folder.close()


def start_monitoring(state: ProxyState) -> Monitoring:
    """Watch the certificates of a started app. Raises `NotOffered` and `CalibrationError`."""
    from desist.calibration.monitor_folder import MonitorFolder
    from desist.proxy.monitor.audits import AuditDesk
    from desist.proxy.monitor.watch import Watch

    settings = state.settings.monitor
    folder = None if settings.state is None else MonitorFolder(settings.state)
    try:
        watch = Watch(settings, state.metrics, folder)
        watch.arm(state.resolver.points)
        audits = AuditDesk(settings, state.engine, watch, state.metrics, folder)
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    state.watch, state.audits = watch, audits
    state.details["monitor"] = lambda: watch.detail() or None
    return Monitoring(audits, folder)


def audited(state: ProxyState, intake: Intake[Any]) -> tuple[GenerationRequest, ...]:
    """The choices of an accepted request, the first of them audited where the coin says so."""
    first, *others = intake.choices
    desk, limit = state.audits, state.sampling.max_tokens
    if desk is None or not desk.toss(intake.resolved, first, limit, intake.tenant):
        return intake.choices
    return (replace(first, audit=True), *others)


def saw(state: ProxyState, intake: Intake[Any], finished: Finished) -> None:
    """Tell the watch of the first choice of a request. What it cannot write must not cost an answer."""
    if state.watch is None:
        return
    user = intake.raw.get("user") or intake.raw.get("safety_identifier")
    try:
        state.watch.saw(
            intake.resolved,
            intake.choices[0],
            finished,
            user=user if isinstance(user, str) else None,
            limit=state.sampling.max_tokens,
            tenant=intake.tenant,
        )
    except OSError as error:
        log.error("the drift state could not be written: %s", error)
