"""The seam for routes whose streams are typed events with a state, instead of chunks with choices.

Knows what `generation` tells such a route about the one choice that it has. Writes nothing itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.engines.base import Delta, Finished
from desist.proxy.errors import ApiError

__all__ = ["TypedShape"]


class TypedShape(ABC):
    """The objects of a typed route, for one request with one choice. Events are bytes as they go out.

    `usage`: as in chat completions. `told`: the `desist` object; None where it is not to be shown.
    """

    @abstractmethod
    def response(
        self, buffer: ChoiceBuffer, usage: Mapping[str, Any], told: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The complete response."""

    @abstractmethod
    def begin(self) -> bytes:
        """The first events of a stream."""

    @abstractmethod
    def take(self, delta: Delta) -> bytes:
        """The events of what was newly generated."""

    @abstractmethod
    def end(self, finished: Finished, usage: Mapping[str, Any], told: Mapping[str, Any] | None) -> bytes:
        """The last events of a stream that came to its end."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """The last events of a stream that broke off."""
