"""The parent's side of several workers: what they must have in common, and how each reaches the others.

A thread of the parent, which outlives its workers: kept responses and the operator's word on the mode are
there, so that nothing is lost when a worker dies. Knows lines and names of calls; serves no requests.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from desist.controller.core import Mode
from desist.data.errors import EngineError
from desist.proxy.lifecycle.team_line import Line
from desist.proxy.responses.store import ResponseStore

__all__ = ["ASK_S", "Hub"]

#: How long one worker may take for what another asks of it.
ASK_S = 10.0
_AGAIN_S = (0.01, 0.03, 0.1)


class Hub:
    """`adopt` each worker's line; `close` at the end. Its methods are for the parent's main thread."""

    def __init__(self, store: ResponseStore) -> None:
        self._store, self._mode = store, "active"
        self._lines: set[Line] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="desist-hub", daemon=True)
        self._thread.start()

    def adopt(self, sock: socket.socket) -> None:
        """Serve the worker at the other end of `sock` for as long as it lives."""
        asyncio.run_coroutine_threadsafe(self._serve(sock), self._loop)

    def close(self) -> None:
        """Hang up on all of them."""
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _serve(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        heard: dict[str, Callable[..., Any]] = {
            "put": self._store.put,
            "get": self._get,
            "delete": self._store.delete,
            "mode": lambda: self._mode,
        }
        line = Line(*await asyncio.open_connection(sock=sock), heard)
        heard |= {"turn": self._turn, "stop": partial(self._stop, line)}
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    async def _hang_up(self) -> None:
        for line in list(self._lines):
            line.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _get(self, owner: bytes, identity: str) -> bytes | None:
        """A response that another worker has just sent may be on its way still."""
        for pause_s in _AGAIN_S:
            if (found := self._store.get(owner, identity)) is not None:
                return found
            await asyncio.sleep(pause_s)
        return self._store.get(owner, identity)

    async def _turn(self, mode: Mode) -> int:
        """Tell all workers, the one that asks too, so that all obey in one order; how many did not answer."""
        self._mode = mode
        return await self._all(set(self._lines), [], "obey", mode)

    async def _stop(self, asking: Line, request_id: str, owner: bytes | None) -> list[Any]:
        """What the other workers say of a stop."""
        told: list[Any] = []
        await self._all(self._lines - {asking}, told, "stop", request_id, owner)
        return told

    @staticmethod
    async def _all(lines: set[Line], told: list[Any], name: str, *args: Any) -> int:
        """Call all of `lines`; their answers go into `told`. How many gave none."""
        answers = await asyncio.gather(
            *(line.call(name, *args, timeout_s=ASK_S / 2) for line in lines), return_exceptions=True
        )
        told += [answer for answer in answers if not isinstance(answer, BaseException)]
        return sum(isinstance(answer, EngineError) for answer in answers)
