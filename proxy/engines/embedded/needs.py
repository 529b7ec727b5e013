"""What the runner needs of a loaded model, and nothing else of it."""

from __future__ import annotations

from typing import Protocol

from desist.controller import Vocabulary

__all__ = ["Model"]


class Model(Protocol):
    """What the runner needs of a loaded model (see `loading.LoadedModel`)."""

    @property
    def network(self) -> object: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def end_ids(self) -> frozenset[int]: ...
    @property
    def hidden_ids(self) -> frozenset[int]: ...
