"""vLLM as a child process: started, watched, ended. Never started again.

Knows processes, signals and the health address; nothing of requests or of what runs inside. The child has
a process group of its own, so that Ctrl-C in a terminal reaches the proxy first, which lets streams finish
and then ends the child. It has no session of its own: Linux shares processor time out by session first, and
vLLM's processes, which ask for their messages without a pause, then kept the proxy waiting for seconds where
there were no more cores than processes. Should the proxy be killed, the kernel (Linux) ends the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from desist.data.errors import EngineError

__all__ = ["Child", "stderr_line"]

logger = logging.getLogger(__name__)

_KEPT_LINES = 30
_POLL_S = 0.25
_KILLED_S = 5.0
_MAX_LINE = 1 << 20
# Its own process group, then PR_SET_PDEATHSIG; both stay with the program that takes this one's place.
_TIED = (
    "import ctypes, os, signal, sys\n"
    "os.setpgid(0, 0)\n"
    "try: ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "except (OSError, AttributeError): pass\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)


def stderr_line(line: str) -> None:
    """Show a line of the child's log."""
    sys.stderr.write(f"vllm | {line}\n")


class Child:
    """One child process: `python ARGUMENTS...`.

    `health`: an address that answers 200 when it serves. `log` gets each line that it prints. `environ` is
    added to this process's environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        health: str,
        *,
        environ: Mapping[str, str] | None = None,
        log: Callable[[str], None] | None = None,
        stop_s: float = 20.0,
    ) -> None:
        self._arguments, self._health = tuple(arguments), health
        self._environ, self._log, self._stop_s = dict(environ or {}), log, stop_s
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Its process id, once started."""
        return None if self._process is None else self._process.pid

    @property
    def failure(self) -> str | None:
        """Why the child does not run any more, with the end of its log; None while it does."""
        code = None if self._process is None else self._process.returncode
        if code is None or self._closing:
            return None
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"vLLM {how}; it is not started again. The end of its log:\n" + "\n".join(self._lines)

    async def start(self, timeout_s: float) -> None:
        """Start it and wait until it is healthy. Raises `EngineError` with the end of its log."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _TIED,
            str(os.getpid()),
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE,
            env={**os.environ, **self._environ},
        )
        self._process = process
        self._tasks = (asyncio.create_task(self._read(process)), asyncio.create_task(self._watch(process)))
        try:
            async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
                while not await self._healthy(session):
                    if process.returncode is not None:
                        await asyncio.wait(self._tasks, timeout=_KILLED_S)
                        raise EngineError(self.failure or "vLLM ended")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise EngineError(
                f"vLLM did not serve within {timeout_s:g} s (vllm.start_s). The end of its log:\n"
                + "\n".join(self._lines)
            ) from error

    async def close(self) -> None:
        """End it: SIGTERM, after `stop_s` seconds SIGKILL. More than once is fine."""
        self._closing = True
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            _signal(os.kill, process.pid, signal.SIGTERM)
            await asyncio.wait(self._tasks, timeout=self._stop_s)
        if process.returncode is None:
            logger.warning("vLLM did not end within %g s of SIGTERM and is killed", self._stop_s)
            _signal(os.killpg, process.pid, signal.SIGKILL)
        _, hanging = await asyncio.wait(self._tasks, timeout=_KILLED_S)
        for task in hanging:  # something that left the group holds the log's pipe
            task.cancel()

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(self._health, timeout=aiohttp.ClientTimeout(total=5)) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                data = await process.stdout.readline()
            except ValueError:  # a line without end: what was read of it is dropped
                continue
            if not data:
                break
            line = data.decode(errors="replace").rstrip()
            self._lines.append(line)
            if self._log is not None:
                self._log(line)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Wait for its end. `process.wait` would wait for the pipe too, which its own children hold open."""
        while True:
            await asyncio.sleep(_POLL_S)
            if process.returncode is not None:
                break
        _signal(os.killpg, process.pid, signal.SIGKILL)  # engine cores and workers that outlived it
        if (failure := self.failure) is not None:
            logger.error("%s", failure)


def _signal(send: Callable[[int, int], None], to: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(to, number)
