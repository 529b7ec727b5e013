"""The other workers, as one of them sees them: what it asks of them and of the parent.

Knows the calls of `team_hub`, by name. Knows no app.
"""

from __future__ import annotations

from desist.controller.core import Mode
from desist.proxy.lifecycle.stopping import Stopping
from desist.proxy.lifecycle.team_hub import ASK_S
from desist.proxy.lifecycle.team_line import Line
from desist.proxy.responses.store import Kept, decoded, encoded

__all__ = ["KeptTogether", "Team"]


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
