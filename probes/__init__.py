"""Probes: from hidden states to a score in [0, 1], higher = safer to stop.

The door. Torch is loaded when a name that needs it is first used, so that `import desist.probes` works in
an installation without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from desist.probes.base import Probe, ProbeCard, StreamingProbe
from desist.probes.features import HiddenSet, HiddenWriter, TokenHiddenWriter, read_hidden

if TYPE_CHECKING:
    from desist.probes.artifact import load_probe, save_probe
    from desist.probes.scoring import score_traces
    from desist.probes.train import train_probe

__all__ = [
    "HiddenSet",
    "HiddenWriter",
    "Probe",
    "ProbeCard",
    "StreamingProbe",
    "TokenHiddenWriter",
    "load_probe",
    "read_hidden",
    "save_probe",
    "score_traces",
    "train_probe",
]

_NEEDS_TORCH = {
    "load_probe": "desist.probes.artifact",
    "save_probe": "desist.probes.artifact",
    "score_traces": "desist.probes.scoring",
    "train_probe": "desist.probes.train",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEEDS_TORCH[name]), name)
