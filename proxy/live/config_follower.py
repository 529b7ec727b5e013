"""New settings for an app that runs: from the file, its key files, certificates and probe, without a restart.

Knows when to look (every few seconds, and at SIGHUP), what can change in a running app and in which order.
New settings that cannot be used leave all as it is, and that is told: in the log, /readyz and a metric.
Requests in flight keep what they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from desist.data.errors import DesistError
from desist.proxy.access.middleware import Access, refuse_open
from desist.proxy.live.certificates import certificate_paths
from desist.proxy.live.reload import load_blocks, reload
from desist.proxy.settings import Settings
from desist.proxy.settings.loading import Source
from desist.proxy.state import ProxyState
from desist.proxy.telemetry.logs import set_up_logs

__all__ = ["FIXED", "ConfigFollower", "follow_settings"]

log = logging.getLogger(__name__)
_WITHOUT_TIMER_S = 1.0
_LARGEST = 16 * 2**20

#: What is made at the start and stays: a change of these waits for the next one.
FIXED = (
    "host",
    "port",
    "engine",
    "model",
    "device",
    "activation",
    "upstream",
    "vllm",
    "sampling",
    "monitor",
    "metrics",
    "responses",
)
_ARTEFACTS = ("probe", "certificates", "force_certificates")


class ConfigFollower:
    """Follows the settings of one app. `failure`: why the newest ones are not in use (None: they are).

    `waiting`: settings that have changed and take effect at the next start.
    """

    def __init__(self, state: ProxyState, source: Source) -> None:
        self._state, self._source = state, source
        self._asked = asyncio.Event()
        self.failure: str | None = None
        self.waiting: tuple[str, ...] = ()
        self._given = state.settings
        self._stamps = _stamps(self._paths())
        self._digest = _digest(self._paths())

    def poke(self) -> None:
        """Look now, also where no file seems to have changed (SIGHUP)."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            every_s = self._state.settings.reload_s
            try:
                async with asyncio.timeout(every_s or None):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            await self.look(asked=asked)

    async def look(self, *, asked: bool = False) -> bool:
        """Whether new settings were taken over. `asked`: reload also where nothing differs."""
        paths = self._paths()
        stamps = await asyncio.to_thread(_stamps, paths)
        if not asked and stamps == self._stamps:
            return False
        digest = await asyncio.to_thread(_digest, paths)
        self._stamps = stamps
        if not asked and digest == self._digest:
            return False
        before, self._digest = self._digest, digest
        try:
            await self._take(artefacts=_changed(before, digest))
        except (DesistError, OSError, ValueError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._state.metrics.reload_failures.inc()
            log.error("the new settings are not in use, the old ones stay: %s", self.failure)
            return False
        # The settings may name other files now: those have been read just before.
        paths = self._paths()
        self._stamps = {path: stamps.get(path, stamp) for path, stamp in _stamps(paths).items()}
        self._digest = {path: digest.get(path) or _digest([path])[path] for path in paths}
        self.failure = None
        self._state.metrics.reloads.inc()
        return True

    async def _take(self, artefacts: frozenset[Path]) -> None:
        """Take over what the source says now. `artefacts`: files whose contents have changed."""
        state, old = self._state, self._state.settings
        new = (await asyncio.to_thread(self._source.load)).settings
        refuse_open(new.model_copy(update={"host": old.host}))
        self.waiting = tuple(name for name in FIXED if getattr(new, name) != getattr(self._given, name))
        merged = new.model_copy(update={name: getattr(old, name) for name in FIXED})
        if old.activation is not None:  # the active pair says which these are
            merged = merged.model_copy(update={name: getattr(old, name) for name in _ARTEFACTS})
        else:
            await self._load_artefacts(merged, artefacts)
        blocks = await asyncio.to_thread(load_blocks, state, merged)
        state.settings = merged
        state.resolver = replace(state.resolver, defaults=merged.control)
        state.block_points = blocks
        state.access = Access(merged)
        limits = merged.limits
        state.admission.resize(limits.max_in_flight, limits.max_queue, limits.queue_s)
        state.switch.follow(merged.mode_file)
        await state.switch.apply()
        if merged.log != old.log:
            set_up_logs(merged.log)
        log.info("new settings are in use")
        if self.waiting:
            log.warning("these settings take effect at the next start: %s", ", ".join(self.waiting))

    async def _load_artefacts(self, new: Settings, changed: frozenset[Path]) -> None:
        old = self._state.settings
        probe = new.probe if new.probe != old.probe or (new.probe and new.probe in changed) else None
        paths = certificate_paths(new)
        other = (
            paths != certificate_paths(old)
            or bool(changed & {*paths})
            or new.force_certificates != old.force_certificates
        )
        if probe is None and not other:
            return
        await reload(
            self._state,
            probe=probe,
            certificates=paths if other or probe is not None else None,
            force=new.force_certificates,
        )

    def _paths(self) -> tuple[Path, ...]:
        """The files whose contents make the settings."""
        settings = self._state.settings
        given: list[Path | None] = [
            self._source.config,
            settings.api_key_file,
            settings.operator_key_file,
            settings.probe,
            *settings.certificates,
            *(path for block in settings.models.values() for path in block.certificates or ()),
        ]
        return tuple(dict.fromkeys(path for path in given if path is not None))

    def detail(self) -> dict[str, Any] | None:
        """For /readyz."""
        told: dict[str, Any] = {}
        if self.failure is not None:
            told["failure"] = self.failure
        if self.waiting:
            told["at_next_start"] = list(self.waiting)
        return told or None


@contextlib.asynccontextmanager
async def follow_settings(state: ProxyState, source: Source | None) -> AsyncIterator[None]:
    """Follow the mode file, and `source` too where there is one, for as long as this lasts."""
    tasks = [asyncio.create_task(_follow_switch(state))]
    follower = None if source is None else ConfigFollower(state, source)
    loop, listens = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()
    if follower is not None:
        state.details["config"] = follower.detail
        tasks.append(asyncio.create_task(follower.run()))
        if listens:
            loop.add_signal_handler(signal.SIGHUP, follower.poke)
    try:
        yield
    finally:
        if follower is not None and listens:
            loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow_switch(state: ProxyState) -> None:
    while True:
        await asyncio.to_thread(state.switch.look_at_file)
        await state.switch.apply()
        await asyncio.sleep(_WITHOUT_TIMER_S)


_Stamps = dict[Path, tuple[int, int, int] | None]


def _files(paths: Iterable[Path]) -> list[Path]:
    """The paths, and what is in those that are folders."""
    found: list[Path] = []
    for path in paths:
        found += sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return found


def _stamps(paths: Iterable[Path]) -> _Stamps:
    stamps: _Stamps = {}
    for path in _files(paths):
        try:
            status = path.stat()
            stamps[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamps[path] = None
    return stamps


def _digest(paths: Iterable[Path]) -> dict[Path, bytes]:
    """By path of those given: what is in it now. Large files count by their stamp."""
    digests = {}
    for path in paths:
        digest = hashlib.blake2b(digest_size=16)
        for file in _files([path]):
            try:
                large = file.stat().st_size > _LARGEST
                digest.update(repr(_stamps([file])).encode() if large else file.read_bytes())
            except OSError as error:
                digest.update(type(error).__name__.encode())
        digests[path] = digest.digest()
    return digests


def _changed(before: dict[Path, bytes], after: dict[Path, bytes]) -> frozenset[Path]:
    return frozenset(path for path in after if before.get(path) != after[path])
