"""desist: ends a reasoning model's thinking when its answer has settled."""

from desist._version import __version__

__all__ = ["__version__"]
