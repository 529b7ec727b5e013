"""Audits of live requests: the coin, the verdict, and the table that keeps it. No text outlives its verdict.

The coin falls before the trace starts and looks at nothing of it. An audited request is served as any
other; the copy that runs on beside its stop is the operator's cost: it is in no usage and no response.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from desist.calibration.audits import AuditTable, Verdict
from desist.calibration.monitor_folder import MonitorFolder
from desist.data.answers import extract_answer
from desist.data.errors import DesistError, NotOffered
from desist.data.fingerprint import fingerprint
from desist.data.judging import answers_equal
from desist.proxy.access.tenants import EVERYONE, Tenant
from desist.proxy.control import OperatingPoint, Resolved
from desist.proxy.engines.base import Audited, Engine, GenerationRequest
from desist.proxy.monitor.watch import Watch, under_certificate
from desist.proxy.settings import MonitorSettings
from desist.proxy.telemetry.metrics import Metrics

__all__ = ["AuditDesk", "judged"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Ticket:
    point: OperatingPoint
    number: int | None
    tenant: Tenant


class AuditDesk:
    """Tosses the coin, waits for both answers, judges, and writes the verdict down.

    `coin`: uniform numbers in [0, 1) (None: the system's). Raises `NotOffered` where audits are asked for
    and `engine` has none.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        engine: Engine,
        watch: Watch,
        metrics: Metrics,
        folder: MonitorFolder | None,
        coin: Callable[[], float] | None = None,
    ) -> None:
        self._settings, self._engine, self._watch = settings, engine, watch
        self._metrics = metrics
        self._coin = coin or secrets.SystemRandom().random
        self._table = AuditTable(folder) if folder is not None else None
        self._open: dict[str, _Ticket] = {}
        self._judging: set[asyncio.Task[None]] = set()
        self._salt = _salt(folder) if folder is not None else b""
        if settings.audit_rate > 0:
            tell = getattr(engine, "tell_audits", None)
            if tell is None:
                raise NotOffered(
                    f"monitor.audit_rate is {settings.audit_rate}, and this engine cannot run a request on "
                    "beside its stop. Use --engine embedded, or set monitor.audit_rate to 0."
                )
            tell(self.told)

    @property
    def waiting(self) -> int:
        """Audits that were begun and are not judged yet."""
        return len(self._open) + len(self._judging)

    def toss(
        self,
        resolved: Resolved,
        request: GenerationRequest,
        limit: int | None,
        tenant: Tenant = EVERYONE,
    ) -> bool:
        """Whether this request is audited. Called before it starts; True opens its audit.

        `limit`: max_tokens of the calibration. Only active requests under their certificate take part, and
        none of a tenant that opted out.
        """
        rate = self._settings.audit_rate
        point = resolved.point
        if rate <= 0 or point is None or resolved.control.mode != "active" or not tenant.audits:
            return False
        if not under_certificate(resolved, request, limit):
            return False
        if getattr(self._engine, "audits_running", 0) >= self._settings.audit_backlog:
            self._metrics.audits.labels("skipped").inc()
            return False
        if request.request_id in self._open or self._coin() >= rate:
            return False
        number = None
        if self._table is not None:
            number = self._table.open(point.digest, self._problem(request))
        self._open[request.request_id] = _Ticket(point, number, tenant)
        return True

    def left(self, request_id: str) -> None:
        """A request ended without an answer: its audit stays open in the table, and is a loss there."""
        if self._open.pop(request_id, None) is not None:
            self._metrics.audits.labels("open").inc()

    def told(self, audited: Audited) -> None:
        """Take both answers of an audited request; judged beside the event loop."""
        ticket = self._open.pop(audited.request_id, None)
        if ticket is None:
            return
        task = asyncio.ensure_future(self._judge(ticket, audited))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def settle(self) -> None:
        """Wait for the verdicts being written."""
        await asyncio.gather(*self._judging, return_exceptions=True)

    async def _judge(self, ticket: _Ticket, audited: Audited) -> None:
        verdict: Verdict = "same"
        if audited.decision is not None:
            verdict = await asyncio.to_thread(judged, audited, ticket.point.judge)
        self._metrics.audits.labels(verdict).inc()
        self._metrics.audit_tokens.inc(audited.extra_tokens)
        if self._table is not None and ticket.number is not None:
            self._table.close(
                ticket.number,
                verdict,
                stopped=audited.decision is not None,
                client_tokens=audited.client_tokens,
                full_tokens=audited.full_tokens,
                extra_tokens=audited.extra_tokens,
            )
        self._watch.lost(ticket.point, float(verdict != "same"), ticket.tenant)

    def _problem(self, request: GenerationRequest) -> bytes:
        asked: Any = request.messages if request.messages is not None else request.prompt
        return hashlib.blake2b(fingerprint(asked).encode(), digest_size=8, key=self._salt).digest()


def judged(audited: Audited, judge: str) -> Verdict:
    """As in calibration: extracted answers, the certificate's judge; a full run without an answer differs."""
    try:
        mine, full = (
            extract_answer(text) if text else None for text in (audited.client_answer, audited.full_answer)
        )
        return "same" if answers_equal(mine, full, judge) else "different"
    except DesistError as error:
        log.warning("an audit could not be judged, which counts as a loss: %s", error)
        return "unjudged"


def _salt(folder: MonitorFolder) -> bytes:
    """Kept with the audits, so that a problem has one hash before and after a restart."""
    saved = folder.load("salt")
    if saved is None:
        saved = {"salt": secrets.token_hex(16)}
        folder.save("salt", saved)
    return bytes.fromhex(str(saved["salt"]))
