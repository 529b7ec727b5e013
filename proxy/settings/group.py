"""What all groups of settings share: the base class and the units of its values.

Knows nothing of any one setting.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Budget", "Group", "Seconds"]

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Budget = Annotated[int, Field(ge=0)]


class Group(BaseModel):
    """Settings that belong together. Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
