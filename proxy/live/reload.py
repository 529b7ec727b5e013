"""Other probes and certificates for an app that runs, without starting its engine again.

Knows the order in which the parts must change: while a new probe is loaded no request is stopped at a
threshold that belongs to the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from desist.data.errors import NotOffered
from desist.proxy.control import ControlResolver, OperatingPoint, check_offered
from desist.proxy.live.certificates import load_points, running_prints
from desist.proxy.settings import Settings
from desist.proxy.state import ProxyState

__all__ = ["load_blocks", "reload"]


async def reload(
    state: ProxyState,
    *,
    probe: Path | None = None,
    certificates: Sequence[Path] | None = None,
    force: bool = False,
    former: Sequence[Path] = (),
    percent: int = 100,
) -> None:
    """Decide new requests by `probe` and `certificates`; None keeps what is there.

    `percent`: share of requests that the new certificates are for; the others are under the `former` ones.
    `force` takes what does not fit and marks it uncertified.

    Certificates that do not fit the new probe are out of use from then on: the error says so, and requests
    run unstopped. Raises `NotOffered` where the engine cannot reload, and what its `reload` and
    `load_points` raise; as long as the engine keeps its probe, everything stays as it was.
    """
    engine, settings, before = state.engine, state.settings, state.resolver
    change = getattr(engine, "reload", None)
    if change is None and (probe is not None or certificates is None):
        raise NotOffered(
            f"engine '{settings.engine}' cannot load another probe while it runs. Start it again."
        )
    state.resolver = ControlResolver(settings.control, (), state.sampling)
    try:
        if change is not None:
            await change(probe=probe, certificates=certificates, force=force)
    except BaseException:
        state.resolver = before
        raise
    changed = {"probe": probe, "certificates": None if certificates is None else tuple(certificates)}
    settings = settings.model_copy(
        update={name: value for name, value in changed.items() if value is not None}
    )
    if probe is not None:
        state.settings = settings
    try:
        resolver = await asyncio.to_thread(
            _resolver,
            state,
            settings.model_copy(update={"force_certificates": settings.force_certificates or force}),
            former,
            percent,
        )
    except BaseException:
        if probe is None:  # what is there still fits what runs
            state.resolver = before
        raise
    state.settings, state.resolver = settings, resolver


def load_blocks(state: ProxyState, settings: Settings) -> dict[str, tuple[OperatingPoint, ...]]:
    """The operating points of models with certificates of their own. Raises what `load_points` raises."""
    prints = running_prints(state.engine, state.sampling)
    points = {}
    for name, block in settings.models.items():
        if block.certificates is not None:
            own = settings.model_copy(update={"certificates": block.certificates})
            points[name] = load_points(own, prints) if block.certificates else ()
            check_offered(settings.engine, state.engine.offers, points[name])
    return points


def _resolver(state: ProxyState, settings: Settings, former: Sequence[Path], percent: int) -> ControlResolver:
    engine = state.engine
    prints = running_prints(engine, state.sampling)
    points = load_points(settings, prints)
    others = settings.model_copy(update={"certificates": tuple(former)})
    outside = load_points(others, prints) if former else ()
    check_offered(settings.engine, engine.offers, (*points, *outside))
    staged = outside if percent < 100 else None
    return ControlResolver(settings.control, points, state.sampling, former=staged, percent=percent)
