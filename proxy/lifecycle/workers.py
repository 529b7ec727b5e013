"""Several proxy processes on one listening socket, for more cores than one, which clients see as one.

Knows processes, signals and one folder. Workers share the socket, the places of `limits` (`shared_places`),
and through their parent kept responses, stops by hand and the mode (`team_hub`); settings reach each through
their file, and /metrics of any one tells the sum (prometheus_client's PROMETHEUS_MULTIPROC_DIR). A worker
that dies is replaced; one that cannot start ends them all.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from desist.data.errors import ControlError, DesistError, EngineError
from desist.proxy.access.middleware import refuse_open
from desist.proxy.lifecycle.serve import address_of, listen, serve_on
from desist.proxy.lifecycle.shared_places import SharedPlaces
from desist.proxy.lifecycle.team_hub import Hub
from desist.proxy.lifecycle.team_member import Membership
from desist.proxy.responses.store import ResponseStore
from desist.proxy.settings import Settings, Source

__all__ = ["refuse_workers", "serve_workers"]

log = logging.getLogger(__name__)
_COUNTS = "PROMETHEUS_MULTIPROC_DIR"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def refuse_workers(settings: Settings) -> None:
    """Raises `ControlError` where a second process would be a second model, or a second writer of one
    state."""
    if settings.upstream is None:
        raise ControlError(
            f"--workers needs a server behind: engine '{settings.engine}' holds the model itself, and each "
            "worker would load its own. Give --upstream URL, or start one worker."
        )
    if settings.monitor.state is not None:
        raise ControlError(
            "--workers and monitor.state exclude each other: drift and audits are kept by one process. Start "
            "one worker, or leave monitor.state out."
        )


def serve_workers(
    settings: Settings,
    workers: int,
    *,
    announce: Callable[[str], None] | None = None,
    source: Source | None = None,
) -> None:
    """`serve` in `workers` processes. Raises `ControlError`, and `EngineError` where a worker cannot
    start."""
    refuse_workers(settings)
    refuse_open(settings)
    with listen(settings.host, settings.port) as sock, _shared() as folder:
        team = _Team(sock, settings, source, workers, folder / "places")
        try:
            with team.signals():
                for row in range(workers):
                    team.start(row)
                team.wait_ready()
                if announce is not None and not team.stopping:
                    announce(address_of(sock))
                team.watch()
        finally:
            team.end()


@contextlib.contextmanager
def _shared() -> Iterator[Path]:
    """A private folder for what all workers have in common; a folder in it for their counts, named in the
    environment.

    Counts get a folder of this run alone: those of an earlier one would be summed too.
    """
    before = os.environ.get(_COUNTS)
    if before:
        Path(before).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="desist-workers-") as folder,
        tempfile.TemporaryDirectory(prefix="desist-counts-", dir=before) as counts,
    ):
        os.environ[_COUNTS] = counts
        try:
            yield Path(folder)
        finally:
            if before:
                os.environ[_COUNTS] = before
            else:
                os.environ.pop(_COUNTS, None)


@dataclass(slots=True)
class _Worker:
    row: int  # among the shared places
    process: SpawnProcess
    told: Connection
    ready: bool = False


class _Team:
    def __init__(
        self, sock: socket.socket, settings: Settings, source: Source | None, rows: int, places: Path
    ) -> None:
        self._sock, self._settings, self._source = sock, settings, source
        self._rows, self._path = rows, places
        self._places = SharedPlaces(places, 0, rows)
        kept = settings.responses
        self._hub = Hub(ResponseStore(kept.keep, kept.keep_bytes, kept.keep_s))
        self._context = multiprocessing.get_context("spawn")
        # Workers see the end of this pipe when this process is gone, however it went.
        self._theirs, self._ours = self._context.Pipe(duplex=False)
        self._workers: list[_Worker] = []
        self.stopping = False

    def start(self, row: int) -> None:
        told, tells = self._context.Pipe(duplex=False)
        ours, theirs = socket.socketpair()
        given = _Given(self._sock, self._settings, self._source, self._theirs, tells, theirs)
        process = self._context.Process(target=_work, args=(given, self._path, row, self._rows), daemon=True)
        process.start()
        tells.close()
        theirs.close()
        self._hub.adopt(ours)
        self._workers.append(_Worker(row, process, told))

    def wait_ready(self) -> None:
        """Until all accept requests. Raises `EngineError` where one cannot."""
        while not self.stopping and any(not worker.ready for worker in self._workers):
            self._look(wait([worker.told for worker in self._workers if not worker.ready]))

    def _look(self, heard: Sequence[object]) -> None:
        for worker in self._workers:
            if worker.told in heard and not worker.ready:
                try:
                    failure = worker.told.recv()
                except EOFError:
                    failure = "it ended without a word"
                if failure is not None and not self.stopping:
                    raise EngineError(f"a worker could not start: {failure}")
                worker.ready = True

    def watch(self) -> None:
        """Until all have ended after a signal; replaces those that die before."""
        while self._workers:
            waited = [worker.process.sentinel for worker in self._workers]
            new = [worker.told for worker in self._workers if not worker.ready]
            self._look(wait([*waited, *new]))
            for worker in [each for each in self._workers if not each.process.is_alive()]:
                self._workers.remove(worker)
                mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]
                self._places.clear(worker.row)
                if not self.stopping:
                    log.warning(
                        "a worker ended (exit code %s); another takes its place", worker.process.exitcode
                    )
                    self.start(worker.row)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        hang_up = number == signal.SIGHUP
        self.stopping = self.stopping or not hang_up
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid or 0, signal.SIGHUP if hang_up else signal.SIGTERM)

    def end(self) -> None:
        """No worker outlives this."""
        self.stopping = True
        self._ours.close()
        for worker in self._workers:
            worker.process.join(self._settings.drain_notice_s + self._settings.drain_s + 10)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._hub.close()
        self._places.close()


@dataclass(frozen=True, slots=True)
class _Given:
    """What a worker is handed. `until` ends with the parent; `tells` takes how the start went."""

    sock: socket.socket
    settings: Settings
    source: Source | None
    until: Connection
    tells: Connection
    line: socket.socket


def _work(given: _Given, places: Path, row: int, rows: int) -> None:
    """One worker's life. Ctrl-C reaches the whole group: it is for the parent, who passes one signal on."""
    from desist.proxy.telemetry.logs import set_up_logs

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_logs(given.settings.log)
    try:
        serve_on(
            given.sock,
            given.settings,
            announce=lambda _: given.tells.send(None),
            until=given.until.fileno(),
            source=given.source,
            membership=Membership(given.line, SharedPlaces(places, row, rows)),
        )
    except DesistError as error:
        given.tells.send(str(error))
        sys.exit(1)
