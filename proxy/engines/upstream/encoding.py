"""Token ids of short texts from a server that has the tokenizer: hand-offs, and what is left of a cut token.

Asks /tokenize where the server has it; else the server's own account of a one-token completion's prompt. What
was learned is kept. Knows nothing of what the texts mean.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from desist.data.errors import UpstreamError
from desist.proxy.engines.upstream.client import UpstreamClient

__all__ = ["Encoder"]

_KEPT = 512  # texts
_AGAIN_S = 60.0  # after which a server that could not is asked again


class Encoder:
    """Encodes texts for one server. `base`: its address, which ends in /v1."""

    def __init__(self, client: UpstreamClient, base: str) -> None:
        self._client, self._base = client, base
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        self._failed: dict[str, float] = {}

    async def encode(self, model: str, text: str, headers: Mapping[str, str]) -> tuple[int, ...] | None:
        """The ids of `text`, no special token added; None where the server cannot tell."""
        if not text:
            return ()
        if (known := self._known.get((model, text))) is not None:
            return known
        if time.monotonic() < self._failed.get(model, 0.0):
            return None
        root = self._base.removesuffix("/v1")
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        ids = await self._ask(root + "/tokenize", body, headers, ("tokens",))
        if ids is None:
            body |= {"max_tokens": 1, "temperature": 0, "return_token_ids": True}
            paths = (("choices", 0, "prompt_token_ids"), ("prompt_token_ids",))
            ids = await self._ask(self._base + "/completions", body, headers, *paths)
        if ids is None:
            self._failed[model] = time.monotonic() + _AGAIN_S
            return None
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[model, text] = ids
        return ids

    async def _ask(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str], *paths: tuple[str | int, ...]
    ) -> tuple[int, ...] | None:
        """The ids at the first of `paths` in the answer that has them."""
        try:
            told = msgspec.json.decode(await self._client.post_whole(url, body, headers))
        except (UpstreamError, msgspec.DecodeError):
            return None
        for path in paths:
            found: Any = told
            try:
                for part in path:
                    found = found[part]
            except (KeyError, IndexError, TypeError):
                continue
            if isinstance(found, list) and found and all(type(each) is int for each in found):
                return tuple(found)
        return None
