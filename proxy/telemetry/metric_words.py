"""The words that may stand in labels: why a choice was not controlled, and which model a request was for.

Bounded lists: what is in neither is "other", so that no client can add a time series. Knows no instruments.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["WHYS", "ModelLabels", "why_of"]

_MOST_MODELS = 100
# Label -> words of the reasons (`Resolved.uncontrolled`, `Finished.uncontrolled`) that it stands for.
WHYS: dict[str, tuple[str, ...]] = {
    "kill_switch": ("kill switch",),
    "alarm": ("fallen back to shadow",),
    "no_certificate": ("no certificate",),
    "never_stops": ("never stops",),
    "scorer": ("scorer",),
    "tools": ("tool",),
    "schema": ("schema", "response_format", "structured", "grammar"),
    "logprobs": ("logprobs",),
    "choices": ("choices", "n >", "'n'"),
    "continuation": ("continu",),
    "events_lost": ("event", "plugin"),
    "tags": ("tag",),
}


def why_of(text: str) -> str:
    """The label for a reason told in words."""
    lower = text.lower()
    return next((why for why, words in WHYS.items() if any(word in lower for word in words)), "other")


class ModelLabels:
    """The names that the label `model` may have: those that are served, as they become known."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, names: Iterable[str]) -> None:
        """Served names. Beyond a hundred of them the label stays "other"."""
        for name in names:
            if len(self._known) < _MOST_MODELS:
                self._known.add(name)

    def label(self, model: str) -> str:
        return model if model in self._known else "other"
