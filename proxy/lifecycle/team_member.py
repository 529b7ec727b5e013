"""A worker's side of several: what it asks the parent and the other workers, and what they may ask of it.

Knows the calls of `team_hub`, by name. A single process has none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from desist.controller.core import Mode
from desist.data.errors import EngineError
from desist.proxy.lifecycle.stopping import Stopping, stop_here
from desist.proxy.lifecycle.team_hub import ASK_S
from desist.proxy.lifecycle.team_line import Line
from desist.proxy.responses.store import Kept, decoded, encoded

if TYPE_CHECKING:
    from desist.proxy.lifecycle.shared_places import SharedPlaces
    from desist.proxy.state import ProxyState

__all__ = ["Membership", "Team", "joined"]


@dataclass(frozen=True, slots=True)
class Membership:
    """What a parent hands to one of its workers: the line to it, and the places that all share."""

    line: socket.socket | None = None
    places: SharedPlaces | None = None


class Team:
    """The other workers, seen from one."""

    def __init__(self, line: Line, *, keeps: bool) -> None:
        self._line = line
        self.responses = KeptTogether(line, keeps=keeps)

    async def stop(self, request_id: str, owner: bytes | None) -> Stopping:
        """What became of a stop in the other workers. Raises `EngineError` where they cannot be asked."""
        told = await self._line.call("stop", request_id, owner, timeout_s=ASK_S)
        return sum(map(Stopping.read, told), Stopping())

    async def turn(self, mode: Mode) -> int:
        """Tell all workers what an operator has said; how many have not answered."""
        silent = await self._line.call("turn", mode, timeout_s=ASK_S)
        return int(silent)


class KeptTogether:
    """Responses that the parent keeps, for all workers."""

    def __init__(self, line: Line, *, keeps: bool) -> None:
        self._line, self.keeps = line, keeps

    def put(self, owner: bytes, kept: Kept) -> None:
        self._line.tell("put", owner, str(kept.response["id"]), encoded(kept))

    async def get(self, owner: bytes, identity: str) -> Kept | None:
        data = await self._line.call("get", owner, identity, timeout_s=ASK_S)
        return None if data is None else decoded(data)

    async def delete(self, owner: bytes, identity: str) -> bool:
        return bool(await self._line.call("delete", owner, identity, timeout_s=ASK_S))


@contextlib.asynccontextmanager
async def joined(state: ProxyState, sock: socket.socket | None) -> AsyncIterator[None]:
    """Be one of several workers for as long as this lasts; `sock` leads to the parent (None: be alone).

    Raises `EngineError` where the parent does not answer.
    """
    if sock is None:
        yield
        return

    async def stop(request_id: str, owner: bytes | None) -> object:
        return msgspec.to_builtins(await stop_here(state, request_id, owner))

    sock.setblocking(False)
    line = Line(*await asyncio.open_connection(sock=sock), {"stop": stop, "obey": state.switch.obey})
    hearing = asyncio.create_task(line.run())
    try:
        kept = state.settings.responses
        state.team = Team(line, keeps=kept.keep > 0 and kept.keep_bytes > 0)
        state.responses = state.team.responses
        await state.switch.obey(await line.call("mode", timeout_s=ASK_S))
        yield
    finally:
        line.close()
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineError):
            await hearing
