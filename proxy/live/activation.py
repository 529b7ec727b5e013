"""The active pair of an activation folder, followed by a running app: no restart, no signal, no port.

Knows when to look and what to hand on; `desist.calibration.activation` owns the folder, `reload` the order
in which the parts of an app change. A pair that cannot be used leaves what runs as it is, and is told.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from desist.calibration.activation import ActivationFolder
from desist.data.errors import DesistError
from desist.proxy.engines.builtin import builtin_probes
from desist.proxy.live.reload import reload
from desist.proxy.settings import Settings
from desist.proxy.state import ProxyState

__all__ = ["Follower", "follower_of", "with_active_pair"]

log = logging.getLogger(__name__)
_EVERY_S = 0.5


def with_active_pair(settings: Settings) -> Settings:
    """The settings with the probe of the active pair, and no certificates: these the follower brings."""
    if settings.activation is None:
        return settings
    pair = ActivationFolder(settings.activation).read().current
    if pair is None:
        return settings
    return settings.model_copy(update={"probe": pair.probe or settings.probe, "certificates": ()})


def follower_of(settings: Settings, state: ProxyState) -> Follower | None:
    """What follows the activation folder of `settings` (as they were before `with_active_pair`)."""
    if settings.activation is None:
        return None
    own = settings.probe or (builtin_probes()[0] if settings.serves_builtin else None)
    return Follower(state, settings.activation, own)


@dataclass(slots=True)
class Follower:
    """Looks at the folder every half second and reloads the app when its state has changed.

    `own_probe`: the probe of pairs that name none. `failure`: why the pair that stands there now is not the
    one that runs (None: it is). `number`: of the state that was taken over last.
    """

    state: ProxyState
    folder: Path
    own_probe: Path | None
    failure: str | None = None
    number: int = -1

    @property
    def active(self) -> bool:
        """Whether a pair is active."""
        return ActivationFolder(self.folder).read().current is not None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look()

    async def look(self) -> bool:
        """Whether something changed and was taken over. What cannot be used is told in `failure`."""
        try:
            changed = await self.take()
        except (DesistError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
            if why != self.failure:
                log.error("the active pair of %s is not in use: %s", self.folder, why)
            self.failure = why
            return False
        return changed

    async def take(self) -> bool:
        """As `look`, but raises what is wrong with the pair."""
        active = await asyncio.to_thread(ActivationFolder(self.folder).read)
        if active.number == self.number:
            return False
        self.number = active.number
        pair = active.current
        wanted = (pair.probe if pair is not None else None) or self.own_probe
        running = self.state.settings.probe or self.own_probe
        await reload(
            self.state,
            probe=wanted if wanted != running else None,
            certificates=() if pair is None else pair.certificates,
            force=pair is not None and pair.force,
            former=active.former_certificates,
            percent=active.percent,
        )
        self.failure = None
        log.info("pair %s is active for %d %% of requests", pair.id if pair else "none", active.percent)
        return True
