"""A closed loop on an offline vLLM engine: so many requests, always as many of them in flight.

Knows requests, their tokens and the clock; nothing of policies or ratios.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from desist.controller import ModelProfile
from desist.data.answers import extract_answer
from desist.data.errors import EngineError
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm.offline.engine import Ask, Generator

__all__ = ["Served", "answer_of", "closed_loop", "reasoning_of"]

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Served:
    """The generated ids of each request, in their order, and the wall clock from the first to the last."""

    token_ids: tuple[tuple[int, ...], ...]
    wall_s: float

    @property
    def tokens(self) -> int:
        """Everything generated, forced tokens included."""
        return sum(map(len, self.token_ids))


def closed_loop(engine: Generator, asks: Sequence[Ask], clients: int) -> Served:
    """Serve all requests, `clients` at a time: one that ends makes room for the next."""
    engine.forget_prompts()
    made: list[list[int]] = [[] for _ in asks]
    waiting = iter(enumerate(asks))
    running: dict[str, int] = {}
    began = time.perf_counter()
    while True:
        for number, ask in itertools.islice(waiting, clients - len(running)):
            request_id = f"loop-{next(_numbers)}"
            running[request_id] = number
            engine.add(request_id, ask)
        if not running:
            break
        for news in engine.step():
            made[running[news.request_id]] += news.token_ids
            if news.finished:
                del running[news.request_id]
    wall = time.perf_counter() - began
    engine.step()  # the plugin hears of the last ends
    return Served(tuple(map(tuple, made)), wall)


def reasoning_of(
    facts: ModelFacts, profile: ModelProfile, token_ids: Sequence[int]
) -> tuple[int, int | None]:
    """How many ids come before the first close tag, and where the answer begins (None: there is no tag)."""
    close = facts.vocabulary.special_id(profile.think_close)
    if close is None:
        raise EngineError(f"model '{facts.name}' has no token {profile.think_close!r}. Choose its profile.")
    if close not in token_ids:
        return len(token_ids), None
    place = token_ids.index(close)
    return place, place + 1


def answer_of(facts: ModelFacts, profile: ModelProfile, token_ids: Sequence[int]) -> str | None:
    """The extracted answer of a generation; None where it has none."""
    _, start = reasoning_of(facts, profile, token_ids)
    if start is None:
        return None
    text = facts.tokenizer.decode(list(token_ids[start:]), skip_special_tokens=True).strip()
    return extract_answer(text) if text else None
