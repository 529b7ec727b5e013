"""Ends the thinking of the running requests of an id, as far as they run in this process.

Knows which requests run, whose they are, and that an engine may be able to stop them. Knows no HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from desist.data.errors import EngineError

if TYPE_CHECKING:
    from desist.proxy.engines.base import Engine
    from desist.proxy.lifecycle.running import Running

__all__ = ["Stopping", "stop_here"]


class Stopping(msgspec.Struct, frozen=True):
    """What became of it. `found`: running requests of this id; `choices`: all of theirs that are controlled.

    `stopped`: how many of these will end at the next clean place; `refused`: why others will not.
    """

    found: int = 0
    choices: int = 0
    stopped: int = 0
    refused: tuple[str, ...] = ()

    def __add__(self, other: Stopping) -> Stopping:
        return Stopping(
            self.found + other.found,
            self.choices + other.choices,
            self.stopped + other.stopped,
            self.refused + other.refused,
        )

    @classmethod
    def read(cls, told: Any) -> Stopping:
        """What another process tells of its own."""
        return msgspec.convert(told, cls)


async def stop_here(
    running: Running, engine: Engine, name: str, request_id: str, owner: bytes | None
) -> Stopping:
    """Ask for the stop of all requests of this id that `owner` has begun (None: whoever has).

    `name`: the engine's, for those who are told that it cannot.
    """
    found = running.find(request_id, owner)
    stop = getattr(engine, "stop", None)
    choices = [choice for ticket in found for choice in ticket.choices]
    stopped, refused = 0, []
    for choice in choices:
        if stop is None:
            refused.append(f"the engine '{name}' cannot end thinking by hand")
            continue
        try:
            stopped += bool(await stop(choice))
        except EngineError as error:
            refused.append(str(error))
    return Stopping(len(found), len(choices), stopped, tuple(refused))
