"""The error for a request that an engine can never serve, whoever else is there."""

from __future__ import annotations

from desist.data.errors import DataError, EngineError

__all__ = ["RequestRefused"]


class RequestRefused(EngineError, DataError):
    """A prompt, limit or sampler out of bounds: the client must change the request (HTTP 400)."""
