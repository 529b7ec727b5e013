"""Keeps the names that the label `model` may have up to date. Knows when to ask an engine for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from desist.data.errors import DesistError
from desist.proxy.state import ProxyState

__all__ = ["learning_models"]

_EVERY_S = 60.0


@contextlib.asynccontextmanager
async def learning_models(state: ProxyState) -> AsyncIterator[None]:
    """Ask now and then which models are served, for as long as this lasts."""
    task = asyncio.create_task(_learn(state))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _learn(state: ProxyState) -> None:
    while True:
        state.metrics.models.learn(state.settings.models)
        with contextlib.suppress(DesistError):
            state.metrics.models.learn(card.model_id for card in await state.engine.models())
        await asyncio.sleep(_EVERY_S)
