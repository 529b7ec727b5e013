"""Sends commands to the plugin in one engine; the answers come with its events.

Knows ids and waiting; not what a command does. A command is never kept for an engine that is not there: one
that is started later would obey it long after its sender has given up.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import zmq

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.beside.subscriber import EventStream
from desist.proxy.engines.vllm.wire import (
    Command,
    CommandDone,
    Identity,
    Ping,
    Reload,
    SetMode,
    StopNow,
    encode,
)

__all__ = ["Commander"]

_HIGH_WATER = 10_000
_RETRY_S = 0.02


class Commander:
    """Commands to the inbox at `endpoint`, whose answers `events` hears. Use it on one event loop.

    Waiting methods give the engine's answer, also one that says no (`ok` False); they raise `EngineError`
    where none came within `timeout_s` seconds. `unsent`: commands of `send` that found nobody.
    """

    def __init__(self, endpoint: str, events: EventStream, *, timeout_s: float = 10.0) -> None:
        self._endpoint, self._events, self._timeout_s = endpoint, events, timeout_s
        self.unsent = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # queue for a connection that stands, never for a hope
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise EngineError(
                f"the commands address {endpoint!r} cannot be used: {error}. Give the one that the plugin "
                "listens at, such as tcp://127.0.0.1:8131."
            ) from error

    async def stop_now(
        self,
        key: str,
        *,
        identity: Identity | None = None,
        reason: str = "manual",
        index: int | None = None,
        score: float | None = None,
        certified: bool = False,
        timeout_s: float | None = None,
    ) -> CommandDone:
        """End the thinking of one choice of `key`, or of all of them."""
        return await self._ask(
            StopNow(_new_id(), key, identity, reason, index, score, certified), timeout_s=timeout_s
        )

    async def set_mode(
        self, cap: Literal["off", "shadow", "active"], *, timeout_s: float | None = None
    ) -> CommandDone:
        """The kill switch: the highest mode that any request may use from now on."""
        return await self._ask(SetMode(_new_id(), cap), timeout_s=timeout_s)

    async def reload(
        self,
        *,
        probe: str | None = None,
        rom: str | None = None,
        certificates: Sequence[str] | None = None,
        force: bool = False,
        timeout_s: float | None = None,
    ) -> CommandDone:
        """Load other probes and certificates, by paths on the engine's machine; None keeps what is there."""
        paths = None if certificates is None else tuple(certificates)
        return await self._ask(Reload(_new_id(), probe, rom, paths, force), timeout_s=timeout_s)

    async def ping(self, *, timeout_s: float | None = None) -> CommandDone:
        """Ask whether anybody listens."""
        return await self._ask(Ping(_new_id()), timeout_s=timeout_s)

    def send(self, command: Command) -> bool:
        """Send without waiting for the answer; whether it left. A full queue or no connection: False."""
        try:
            self._socket.send(encode(command), zmq.NOBLOCK)
        except zmq.Again:
            self.unsent += 1
            return False
        return True

    def close(self) -> None:
        """End the connection. May be called again."""
        self._context.destroy(linger=0)

    async def _ask(self, command: Command, *, timeout_s: float | None) -> CommandDone:
        limit = self._timeout_s if timeout_s is None else timeout_s
        end = time.monotonic() + limit
        answer = self._events.answer_to(command.id)
        what = type(command).__name__
        try:
            await self._leave(encode(command), what, end, limit)
            return await asyncio.wait_for(answer, max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise EngineError(
                f"the engine at {self._endpoint} did not answer the command {what} within {limit:g} s. It "
                "may still obey: look at its log, and send a ping."
            ) from None
        finally:
            answer.cancel()

    async def _leave(self, message: bytes, what: str, end: float, limit: float) -> None:
        while True:
            try:
                self._socket.send(message, zmq.NOBLOCK)
                return
            except zmq.Again:
                if time.monotonic() >= end:
                    raise EngineError(
                        f"nobody takes commands at {self._endpoint}: {what} was not sent within {limit:g} s. "
                        "Is vLLM running with the plugin, and is its 'commands' address this one?"
                    ) from None
            await asyncio.sleep(_RETRY_S)


def _new_id() -> str:
    return uuid.uuid4().hex
