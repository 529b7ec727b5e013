"""How a worker becomes one of several: what the others may ask of it, and when it begins and ends.

Knows the app's state and the line to the parent. A single process has none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from desist.data.errors import EngineError
from desist.proxy.lifecycle.stopping import stop_here
from desist.proxy.lifecycle.team import Team
from desist.proxy.lifecycle.team_hub import ASK_S
from desist.proxy.lifecycle.team_line import Line

if TYPE_CHECKING:
    from desist.proxy.lifecycle.shared_places import SharedPlaces
    from desist.proxy.state import ProxyState

__all__ = ["Membership", "joined"]


@dataclass(frozen=True, slots=True)
class Membership:
    """What a parent hands to one of its workers: the line to it, and the places that all share."""

    line: socket.socket | None = None
    places: SharedPlaces | None = None


@contextlib.asynccontextmanager
async def joined(state: ProxyState, sock: socket.socket | None) -> AsyncIterator[None]:
    """Be one of several workers for as long as this lasts; `sock` leads to the parent (None: be alone).

    Raises `EngineError` where the parent does not answer.
    """
    if sock is None:
        yield
        return

    async def stop(request_id: str, owner: bytes | None) -> object:
        return msgspec.to_builtins(
            await stop_here(state.running, state.engine, state.settings.engine, request_id, owner)
        )

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
