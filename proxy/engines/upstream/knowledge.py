"""What is known of the server, model by model: the self-test's findings, made in the background.

Nothing waits for it: a request of a model that was not examined yet goes by what its own first call shows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from desist.data.errors import DesistError
from desist.proxy.engines.upstream.capabilities import Capabilities

__all__ = ["Knowledge"]

log = logging.getLogger(__name__)
_AGAIN_S = 60.0  # after which a model whose examination failed is examined again
_AT_START = 4  # models


class Knowledge:
    """Examines models with `examine`, one at a time. `examine` None: nothing is ever known."""

    def __init__(self, examine: Callable[[str], Awaitable[Capabilities]] | None) -> None:
        self._examine = examine
        self._known: dict[str, Capabilities] = {}
        self._failed: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()

    def of(self, model: str) -> Capabilities | None:
        """What is known of a model now; one that was never examined will be."""
        known = self._known.get(model)
        due = time.monotonic() >= self._failed.get(model, 0.0)
        if known is None and self._examine is not None and model not in self._tasks and due:
            self._tasks[model] = asyncio.create_task(self._find_out(model))
        return known

    def begin(self, models: Sequence[str]) -> None:
        """Examine these models before anyone asks for them."""
        for model in models[:_AT_START]:
            self.of(model)

    async def wait(self, model: str) -> Capabilities | None:
        """What is known of a model once its examination has ended; None: it cannot or must not be made."""
        self.of(model)
        if (task := self._tasks.get(model)) is not None:
            await asyncio.wait([task])
        return self._known.get(model)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_out(self, model: str) -> None:
        assert self._examine is not None
        try:
            async with self._one:
                found = await self._examine(model)
            if found.examined:
                self._known[model] = found
            else:
                self._failed[model] = time.monotonic() + _AGAIN_S
            for note in (*found.conflicts, *found.notes):
                log.info("upstream model %s: %s", model, note)
        except DesistError as error:
            self._failed[model] = time.monotonic() + _AGAIN_S
            log.warning("upstream model %s could not be examined: %s", model, error)
        finally:
            self._tasks.pop(model, None)
