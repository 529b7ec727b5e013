"""Choosing the next tokens: temperature, top_k, top_p, one uniform number per request and step.

The n-th token of a request depends on its logits, its seed and n only; never on its neighbours. The
uniform numbers come from a counter-based generator (Philox), so that a forced token costs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from desist.proxy.engines.refusal import RequestRefused

__all__ = ["Draw", "Uniforms", "choose", "derived_seed"]

_BLOCK = 128
_HEAD = 64  # tokens ranked first; a larger nucleus takes a full sort


@dataclass(frozen=True, slots=True)
class Draw:
    """How tokens are drawn. `temperature` 0 = greedy; `top_k` None or 0 = all; `top_p` in (0, 1]."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestRefused(f"temperature is {self.temperature}; give 0 or more")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestRefused(f"top_p is {self.top_p}; give a number above 0 and at most 1")
        if self.top_k is not None and self.top_k < 0:
            raise RequestRefused(f"top_k is {self.top_k}; give 0 (all tokens) or more")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def truncates(self) -> bool:
        return self.top_p < 1.0 or bool(self.top_k)


class Uniforms:
    """The stream of uniform numbers of one request: number n depends on the seed and n only."""

    __slots__ = ("_block", "_numbers", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed % (1 << 128)
        self._block = -1
        self._numbers: list[float] = []

    def at(self, step: int) -> float:
        """Number `step` (from 0), in [0, 1)."""
        block, offset = divmod(step, _BLOCK)
        if block != self._block:
            # Philox makes four 64-bit words a count and random() takes one of them.
            bits = np.random.Philox(key=self._seed, counter=block * (_BLOCK // 4))
            self._numbers = np.random.Generator(bits).random(_BLOCK).tolist()
            self._block = block
        return self._numbers[offset]


def derived_seed(*parts: int | str) -> int:
    """A seed from seeds and names: the first 53 bits of the SHA-256 of the parts joined by ':'."""
    digest = hashlib.sha256(":".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8]) >> 11


def choose(logits: torch.Tensor, draws: Sequence[Draw], uniforms: Sequence[float]) -> list[int]:
    """One token per row. `logits` [B, V] float32; `draws` and `uniforms` one per row.

    Greedy rows take the first largest logit. The others invert the cumulative distribution (float64)
    at their uniform number: in vocabulary order, or, where top_k or top_p cuts, in order of probability.
    """
    if all(draw.greedy for draw in draws):
        return logits.argmax(dim=-1).tolist()
    plain = [row for row, draw in enumerate(draws) if not draw.greedy and not draw.truncates]
    cut = [row for row, draw in enumerate(draws) if not draw.greedy and draw.truncates]
    greedy = [row for row, draw in enumerate(draws) if draw.greedy]
    chosen = [0] * len(draws)
    for rows, pick in ((plain, _pick_plain), (cut, _pick_cut)):
        if rows:
            part = logits if len(rows) == len(draws) else logits[rows]
            picked = pick(part, [draws[row] for row in rows], [uniforms[row] for row in rows])
            for row, token in zip(rows, picked, strict=True):
                chosen[row] = token
    if greedy:
        for row, token in zip(greedy, logits[greedy].argmax(dim=-1).tolist(), strict=True):
            chosen[row] = token
    return chosen


def _weights(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Unnormalised probabilities [B, V] in float64, largest 1."""
    temperature = torch.tensor([draw.temperature for draw in draws], dtype=torch.float64)
    scaled = logits.double() / temperature.to(logits.device)[:, None]
    return (scaled - scaled.amax(dim=-1, keepdim=True)).exp()


def _invert(cumulative: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """First index whose cumulative weight exceeds u times the total. [B, V] -> [B, 1]."""
    points = torch.tensor(uniforms, dtype=torch.float64, device=cumulative.device)[:, None]
    index = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    return index.clamp_(max=cumulative.shape[1] - 1)


def _pick_plain(logits: torch.Tensor, draws: Sequence[Draw], uniforms: Sequence[float]) -> list[int]:
    index = _invert(_weights(logits, draws).cumsum(dim=-1), uniforms)
    return index[:, 0].tolist()


def _pick_cut(logits: torch.Tensor, draws: Sequence[Draw], uniforms: Sequence[float]) -> list[int]:
    weights = _weights(logits, draws)
    totals = weights.sum(dim=-1)
    vocabulary = weights.shape[1]
    few = min(_HEAD, vocabulary)
    ranked, order = torch.topk(weights, few, dim=-1)
    top_p = torch.tensor([draw.top_p for draw in draws], dtype=torch.float64, device=logits.device)
    top_k = torch.tensor([draw.top_k or vocabulary for draw in draws], device=logits.device)
    enough = ((ranked.sum(dim=-1) >= top_p * totals) | (top_k <= few)).tolist()
    picked = _from_ranked(ranked, order, totals, top_p, top_k, uniforms)
    if not all(enough):  # a row whose nucleus is larger than the head is sorted whole
        rows = [row for row, fits in enumerate(enough) if not fits]
        ranked, order = torch.sort(weights[rows], dim=-1, descending=True, stable=True)
        numbers = [uniforms[row] for row in rows]
        for row, token in zip(
            rows,
            _from_ranked(ranked, order, totals[rows], top_p[rows], top_k[rows], numbers),
            strict=True,
        ):
            picked[row] = token
    return picked


def _from_ranked(
    ranked: torch.Tensor,
    order: torch.Tensor,
    totals: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniforms: Sequence[float],
) -> list[int]:
    """Draw from weights [B, N] in falling order; `order` [B, N] holds their tokens, `totals` [B] all mass."""
    places = torch.arange(ranked.shape[1], device=ranked.device)
    kept = ranked.masked_fill(places >= top_k[:, None], 0.0)
    # top_p counts within what top_k left, as everywhere: k first, then p.
    base = torch.where(top_k <= ranked.shape[1], kept.sum(dim=-1), totals)
    before = kept.cumsum(dim=-1) - kept
    kept = kept.masked_fill(before >= (top_p * base)[:, None], 0.0)
    index = _invert(kept.cumsum(dim=-1), uniforms)
    return order.gather(1, index)[:, 0].tolist()
