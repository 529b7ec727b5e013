"""One connection between a worker and its parent: words, calls and answers, both ways, over a socket pair.

Knows frames (four bytes of length, then msgpack) and who is called by a name. Does not know what is said.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from desist.data.errors import DesistError, EngineError

__all__ = ["Line"]

log = logging.getLogger(__name__)
_TELL, _CALL, _ANSWER, _FAILURE = range(4)
_LONGEST = 2**31
_UNSENT = 256 * 2**20  # bytes that may wait for the other end


class Line:
    """`heard`: what the other end may call, by name; arguments and results are plain msgpack values.

    Words and calls of plain functions are heard in the order in which they came; calls of coroutines run side
    by side.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._reader, self._writer, self._heard = reader, writer, heard
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Hear the other end until it is gone."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4))
                self._take(*msgspec.msgpack.decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.close()

    def tell(self, name: str, *args: Any) -> bool:
        """Say something that needs no answer; False: the other end is gone, or far behind."""
        return self._write(_TELL, 0, name, args)

    async def call(self, name: str, *args: Any, timeout_s: float) -> Any:
        """What the other end answers. Raises `EngineError` where it is gone, late, or says no."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._write(_CALL, number, name, args):
                raise EngineError("the process at the other end is gone.")
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise EngineError(f"another process did not answer within {timeout_s:g} s.") from error
        finally:
            del self._asked[number]

    def close(self) -> None:
        """Hang up. Whoever waits for an answer is told. More than once is fine."""
        for task in self._tasks:
            task.cancel()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineError("the process at the other end is gone."))
        self._writer.close()

    def _take(self, kind: int, number: int, name: str, args: list[Any]) -> None:
        if kind in (_ANSWER, _FAILURE):
            answer = self._asked.get(number)
            if answer is not None and not answer.done():
                if kind == _ANSWER:
                    answer.set_result(args[0])
                else:
                    answer.set_exception(EngineError(str(args[0])))
            return
        try:
            found = self._heard[name](*args)
        except Exception as error:
            self._failed(number, name, error)
            return
        if inspect.isawaitable(found):
            task = asyncio.ensure_future(self._answer(number, name, found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif number:
            self._write(_ANSWER, number, "", (found,))

    async def _answer(self, number: int, name: str, found: Any) -> None:
        try:
            value = await found
        except Exception as error:
            self._failed(number, name, error)
            return
        if number:
            self._write(_ANSWER, number, "", (value,))

    def _failed(self, number: int, name: str, error: Exception) -> None:
        if not isinstance(error, DesistError):
            log.error("the call %r of another process failed", name, exc_info=error)
        if number:
            self._write(_FAILURE, number, "", (f"{error}" or type(error).__name__,))

    def _write(self, kind: int, number: int, name: str, args: tuple[Any, ...]) -> bool:
        frame = msgspec.msgpack.encode((kind, number, name, args))
        transport = self._writer.transport
        behind = transport.get_write_buffer_size() + len(frame) > _UNSENT
        if transport.is_closing() or behind or len(frame) >= _LONGEST:
            return False
        self._writer.write(len(frame).to_bytes(4) + frame)
        return True
