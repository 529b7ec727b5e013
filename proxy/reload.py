"""Other probes and certificates for an app that runs, without starting its engine again.

Knows the order in which the parts must change: while a new probe is loaded no request is stopped at a
threshold that belongs to the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from desist.data.errors import NotOffered
from desist.proxy.certificates import load_points
from desist.proxy.control import ControlResolver, check_offered
from desist.proxy.state import ProxyState

__all__ = ["reload"]


async def reload(
    state: ProxyState,
    *,
    probe: Path | None = None,
    certificates: Sequence[Path] | None = None,
    force: bool = False,
) -> None:
    """Decide new requests by `probe` and `certificates`; None keeps what is there.

    Certificates that do not fit the new probe are out of use from then on: the error says so, and requests
    run unstopped. Raises `NotOffered` where the engine cannot reload, and what its `reload` and
    `load_points` raise; if the engine keeps its probe, everything stays as it was.
    """
    engine, settings, before = state.engine, state.settings, state.resolver
    change = getattr(engine, "reload", None)
    if change is None:
        raise NotOffered(
            f"engine '{settings.engine}' cannot load another probe while it runs. Start it again."
        )
    state.resolver = ControlResolver(settings.control, (), state.sampling)
    try:
        await change(probe=probe, certificates=certificates, force=force)
    except BaseException:
        state.resolver = before
        raise
    changed = {"probe": probe, "certificates": None if certificates is None else tuple(certificates)}
    state.settings = settings = settings.model_copy(
        update={name: value for name, value in changed.items() if value is not None}
    )
    points = await asyncio.to_thread(load_points, settings, getattr(engine, "fingerprints", {}))
    check_offered(settings.engine, engine.offers, points)
    state.resolver = ControlResolver(settings.control, points, state.sampling)
