"""How the reasoner is sampled when it is served. The numbers of its card were measured with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampler:
    """Temperature, nucleus and the most tokens of one run."""

    temperature: float
    top_p: float
    max_new_tokens: int


SERVED_SAMPLER = Sampler(temperature=0.8, top_p=0.95, max_new_tokens=512)
