"""The probes of a running model, loaded and checked against it.

Knows folders and probe families; nothing of batching.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desist.data.errors import ProbeError
from desist.probes.base import Probe, StreamingProbe
from desist.proxy.engines.builtin import builtin_model, builtin_probes

if TYPE_CHECKING:
    import torch

__all__ = ["Scorers", "builtin_model", "builtin_probes", "load_scorers"]


@dataclass(frozen=True, slots=True)
class Scorers:
    """The probes of an engine: one that scores boundaries, one that reads every token."""

    probe: Probe | None = None
    rom: StreamingProbe | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The score names they fill."""
        return frozenset(name for name in ("probe", "rom") if getattr(self, name) is not None)


def load_scorers(
    probe: str | Path | None,
    rom: str | Path | None,
    *,
    expect: Mapping[str, str],
    force: bool,
    device: torch.device | str,
) -> Scorers:
    """Load the probes that are named and check them against what runs (`expect`: its fingerprints).

    A streaming probe given as `probe` is taken as one. Only fingerprints that a card names are compared.
    """
    from desist.probes.artifact import load_probe, probe_fingerprint
    from desist.probes.rom import RomProbe

    loaded: dict[str, Any] = {}
    prints: dict[str, str] = {}
    for name, folder in (("probe", probe), ("rom", rom)):
        if folder is None:
            continue
        named = set(load_probe(folder, force=True).card.fingerprints)
        known = {key: value for key, value in expect.items() if key in named}
        one = load_probe(folder, expect=known, force=force)
        place = "rom" if isinstance(one, RomProbe) else "probe"
        if place in loaded:
            raise ProbeError(f"two probes of one kind are named, the second is {folder}. Name one of each.")
        if name == "rom" and place == "probe":
            raise ProbeError(f"{folder} holds no streaming probe. Give it as the boundary probe.")
        loaded[place] = one.to(device)
        prints[place] = probe_fingerprint(one)
    return Scorers(loaded.get("probe"), loaded.get("rom"), prints)
